//! Reasoning inside assistant texts: removed, kept, or replaced by an empty block.
//!
//! Rules: MindSpeed-LLM head, `mindspeed_llm/tasks/preprocess/templates.py`, the reasoning template.

use super::{Message, Template, Turn};
use crate::{Result, Tokenizer};
use std::borrow::Cow;

/// The messages of a conversation that is trained turn by turn: without thoughts where thinking is switched off.
pub(super) fn thoughts_of_all<'a>(template: &Template, messages: &'a [Message]) -> Cow<'a, [Message]> {
    if template.thinking != Some(false) {
        return Cow::Borrowed(messages);
    }
    let mut messages = messages.to_vec();
    messages.iter_mut().skip(1).step_by(2).for_each(|message| remove(template, message));
    Cow::Owned(messages)
}

/// The messages of a conversation whose last answer alone is trained: earlier thoughts go in any case.
pub(super) fn thoughts_of_last<'a>(template: &Template, messages: &'a [Message]) -> Cow<'a, [Message]> {
    let mut messages = messages.to_vec();
    let count = messages.len();
    messages.iter_mut().take(count.saturating_sub(2)).skip(1).step_by(2).for_each(|m| remove(template, m));
    if let (Some(false), Some(last)) = (template.thinking, messages.last_mut()) {
        remove(template, last);
    }
    Cow::Owned(messages)
}

/// An answer without any thought gets an empty one: not trained, unless thinking is switched on.
pub(super) fn empty_thought(
    template: &Template,
    tokenizer: &Tokenizer,
    answer: &Message,
    turn: &mut Turn,
) -> Result<()> {
    let (open, close) = &template.thought_words;
    if answer.content.contains(open.as_str()) || answer.content.contains(close.as_str()) {
        return Ok(());
    }
    let mut ids = tokenizer.encode(&[open.as_str(), close.as_str()].concat())?;
    if template.thinking == Some(true) {
        ids.append(&mut turn.target);
        turn.target = ids;
    } else {
        turn.source.append(&mut ids);
    }
    Ok(())
}

/// Cuts out everything from an opening word to the next closing one, then line ends at the beginning.
fn remove(template: &Template, message: &mut Message) {
    let (open, close) = &template.thought_words;
    let mut out = String::new();
    let mut rest = message.content.as_str();
    while let Some(start) = rest.find(open.as_str()) {
        let inside = start + open.len();
        let Some(end) = rest[inside..].find(close.as_str()) else { break };
        let behind = inside + end + close.len();
        // Words without letters are everywhere, and nothing is between them.
        if behind == 0 {
            break;
        }
        out.push_str(&rest[..start]);
        rest = &rest[behind..];
    }
    out.push_str(rest);
    message.content = out.trim_start_matches('\n').to_owned();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Role;

    #[test]
    fn thoughts_are_cut_out_and_an_open_one_stays() {
        let template = Template::named("qwen3").unwrap();
        for (text, want) in [
            ("<think>\na\n</think>\n\nb", "b"),
            ("<think>\na\n</think>\n\n\n\nb<think>\n\n</think>\n\nc", "bc"),
            ("<think>\nopen", "<think>\nopen"),
            ("none", "none"),
        ] {
            let mut message = Message::new(Role::Assistant, text);
            remove(&template, &mut message);
            assert_eq!(message.content, want);
        }
    }

    #[test]
    fn words_without_letters_leave_a_text_as_it_is() {
        let words = |open: &str, close: &str| Template {
            thought_words: (open.into(), close.into()),
            ..Template::named("qwen3").unwrap()
        };
        for (template, want) in [(words("", ""), "ab|c"), (words("", "|"), "c"), (words("b", ""), "a|c")] {
            let mut message = Message::new(Role::Assistant, "\nab|c");
            remove(&template, &mut message);
            assert_eq!(message.content, want);
        }
    }
}
