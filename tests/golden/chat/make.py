"""Writes what transformers' environment makes of chat templates.

    python make.py        # transformers 4.51.3 and 5.24.0 write the same file

writes templates.json: a list of `[template, text]`, of MESSAGES.
"""

import json

from transformers.utils import chat_template_utils

MESSAGES = [{"role": "user", "content": "Hi there"}]
compiled = chat_template_utils._compile_jinja_template

WHOLE = [
    "{% for m in messages %}{% generation %}[{{ m.content }}]{% endgeneration %}{% endfor %}",
    "a\n  {%- generation -%}\n  b\n  {%- endgeneration %}\nc\n",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "{% if true %}\r\na\r\n{% endif %}\r\nb\rc\r\n",
    "{{ 'a\r\nb' | length }}",
    "{% set t = ('a', 'b') %}{{ '%s-%s' % t }}",
    "{% set d = {'k': 3} %}{{ '%(k)d|' % d }}",
    "{% set j = joiner(', ') %}{% for c in 'abc' %}{{ j() }}{{ c }}{% endfor %}",
    "{% set c = cycler('odd', 'even') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}",
    "{% set content = messages[0].content %}{% if '</think>' in content %}{% endif %}{{ content.rsplit(' ', 1)[-1] }}",
    "{{ {'a': {'b': '%s'}} | length }}{{ '%s' % '}}' }}",
    "{% set f = '%s of %d' %}{{ f % ('a', 3) }} {{ f % (f % (1, 2), 4) }}",
    "{% set n = -7 %}{{ n % 4 }} {{ n % -4 }} {{ (n + 0.5) % 2 }} {{ 3 * n % 4 }} {{ n % 4 * 3 }} {{ n % 2 == 1 }} {{ n|abs % 4 }}",
    "{% for i in [8, 9] %}{{ loop.index0 % 2 == 0 }}{{ 'x' if i % 2 else 'y' }}{% endfor %}",
    "{% set f = ['%s|'] %}{{ f[0] % messages[0].content }}{{ (f[0] ~ '%d') % (1, 2) }}{{ f|first % 'z' }}",
    "{% set f = '%05.1f' %}{{ f % 3 }} {{ f % 3.14159|round(2) }}",
    "{% macro m(f, x) %}{{ f % x }}{% endmacro %}{{ m('<%s>', 'a') }}{{ m(7, 4) }}",
    "{% set x = 17 %}{{ x % 5 % 2 }} {{ x % 2 ** 3 }} {{ -x % 5 }} {{ x // 2 % 3 }}",
]
EXPRESSIONS = r"""
'%s' % 'x' | upper ~ 'y'
'%s and %d' % ('a', 7)
'%05d|%-4s|%4s|%%' % (42, 'x', 'y')
'%.2f' % 3.14159
'%x %X %o %e %g' % (255, 255, 8, 1234.5, 0.00001)
'%s' % none
'%s' % true
'%s' % 1.5
'%s' % messages[0].content.upper()
'%s' % messages[0]['content'][:2]
'%s' % (messages | length)
'%d items' % messages | length
'a' ~ '%s' % 'b' ~ 'c'
7 % 4
-7 % 4
7.5 % 2
'aXbXc'.rsplit('X', 1)
'aXbXc'.rsplit('X')
'a b  c '.split(none, 1)
'a b c'.split(maxsplit=1)
' a  b c '.rsplit(none, 1)
' a  b '.split()
''.split()
''.split(',')
'a,b,,c'.split(',', 2)
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('-')
'abc'.rpartition('-')
'they\'re bill\'s'.title()
'hELLO wORLD'.capitalize()
'ßen'.capitalize() ~ 'ǆ'.title() ~ 'ß'.upper() ~ 'ﬁn'.title()
'ßen' | capitalize
'HeLLo1'.swapcase()
'abc'.startswith(('x', 'ab'))
'abc'.startswith('b', 1)
'abc'.endswith(('x', 'bc'))
'abc'.endswith('b', 0, 2)
'abc'.startswith('', 4)
'abcabc'.find('c', 3)
'abcabc'.find('c', -1)
'abcabc'.rfind('b', 0, 4)
'éabc'.index('c')
'abcabc'.rindex('a')
'aXaXa'.count('X', 2)
'aaaa'.count('aa')
'abc'.count('')
'  a '.strip() ~ '|'
'xaxbx'.strip('x')
' a '.lstrip() ~ '|'
' a '.rstrip() ~ '|'
'file.txt'.removesuffix('.txt')
'file.txt'.removeprefix('fi')
'7'.zfill(3) ~ '-7'.zfill(4) ~ '+7'.zfill(1)
'a'.ljust(3, '.') ~ 'a'.rjust(3) ~ 'a'.center(4, '*') ~ 'ab'.center(5, '*')
'a\tb\n\tc'.expandtabs(4)
'a\r\nb\x0bc\n\nd'.splitlines()
'a\nb\n'.splitlines(true)
'a\nb'.splitlines(keepends=true)
' \x1c'.isspace()
'aXb'.replace('X', '-', 1)
','.join(['a', 'b'])
'{}-{}'.format('a', 2)
'{0}-{name}-{0}'.format('a', name='b')
'{:>5}|{:.3f}|{:,}'.format('a', 1.23456, 1234567)
[1, 2, 3].index(2)
[1, 2].copy()
[1, 2, 1].count(1)
{'a': 1}.copy()
{'a': 1}.get('b', 2)
{'a': 1, 'b': 2}.keys() | list
{'a': 1, 'b': 2}.values() | list
'z' | int
'z' | int(7)
'1.9' | int
'ff' | int(base=16)
none | int
'z' | float
'1.5' | float
'z' | float(2.5)
'a b-c d_e' | wordcount
'ab' | center(6) ~ '|'
'foo bar baz qux' | truncate(9, true)
'foo bar baz qux' | truncate(9)
'<b>a</b>  c' | striptags
'a' is sequence
messages[0] is sequence
messages is sequence
1 is sequence
'a' is iterable
none is iterable
gone is iterable
[1e-05, 1e16, 2.0, -0.0, true, none, 'a\u200b\u00a0b', "it's", 'tab\t', 'é中']
{'a': (1,), 'b': [], 'c': {}, 'd': ('x', 2.5), 3: [gone]}
[1e-07] | string | upper
messages[1:] + [1e-05, 'a\u200b'][0:]
1e16
-2.5e-5 | string
0.0001
messages[0] is mapping
messages | map(attribute='content') | map('upper') | join('/')
messages | selectattr('role', 'equalto', 'user') | list | length
"""

cases = [*WHOLE, *("{{ %s }}" % line for line in EXPRESSIONS.strip().splitlines())]
rendered = [[source, compiled(source).render(messages=MESSAGES)] for source in cases]
with open("templates.json", "w") as file:
    json.dump(rendered, file, indent=0, ensure_ascii=False)
    file.write("\n")
