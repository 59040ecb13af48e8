//! Streams that are accepted, and streams that are refused.

use proptest::prelude::*;

use super::*;

const BINARY: Allowed =
    Allowed { calls: &[], prefixes: &[], hint: "\nhint: leave it out", protocols: (2, 5) };
const TEXT: Allowed = Allowed { calls: &["sets.Set"], prefixes: &[], hint: "", protocols: (0, 3) };

#[test]
fn numbers_texts_and_containers_are_read() {
    // {"a": [1, -1, 300, 2**40, 1.5, None, True], "b": (b"x",)}
    let bytes = b"\x80\x02}(X\x01\x00\x00\x00a](K\x01J\xff\xff\xff\xffM\x2c\x01\x8a\x06\x00\x00\x00\x00\x00\x01G?\xf8\x00\x00\x00\x00\x00\x00N\x88eX\x01\x00\x00\x00bC\x01x\x85u.";
    let p = read(bytes, &BINARY).unwrap();
    assert_eq!(p.length, bytes.len());
    let Obj::Dict(entries) = &p.objects[p.root] else { panic!() };
    let Obj::List(items) = &p.objects[entries[0].1] else { panic!() };
    let items: Vec<&Obj> = items.iter().map(|&i| &p.objects[i]).collect();
    assert_eq!(
        items,
        [
            &Obj::Int(1),
            &Obj::Int(-1),
            &Obj::Int(300),
            &Obj::Int(1 << 40),
            &Obj::Float(1.5),
            &Obj::None,
            &Obj::Bool(true)
        ]
    );
}

#[test]
fn a_call_that_is_not_on_the_list_is_refused_by_name_and_place() {
    let (at, what) = read(b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", &BINARY).unwrap_err();
    assert_eq!(
        (at, what.as_str()),
        (21, "a call of os.system is refused: not on the list of allowed functions\nhint: leave it out")
    );
    let (_, what) = read(b"\x80\x02ibuiltins\neval\n.", &BINARY).unwrap_err();
    assert_eq!(what, "opcode INST (0x69) is not allowed");
}

#[test]
fn sets_and_arrays_of_bytes_are_read() {
    // ({1, 2}, frozenset({3}), set(), bytearray(b"xy"))
    let bytes = b"\x80\x05(\x8f\x94(K\x01K\x02\x90(K\x03\x91\x94\x8f\x96\x02\0\0\0\0\0\0\0xyt.";
    let p = read(bytes, &BINARY).unwrap();
    let Obj::Tuple(parts) = &p.objects[p.root] else { panic!() };
    let numbers = |id: usize| -> Vec<&Obj> {
        let Obj::List(items) = &p.objects[id] else { panic!() };
        items.iter().map(|&i| &p.objects[i]).collect()
    };
    assert_eq!(numbers(parts[0]), [&Obj::Int(1), &Obj::Int(2)]);
    assert_eq!((numbers(parts[1]), numbers(parts[2])), (vec![&Obj::Int(3)], vec![]));
    assert_eq!(p.objects[parts[3]], Obj::Bytes(b"xy".to_vec()));
    for (stream, want) in [
        (
            &b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7fx."[..],
            "9223372036854775807 more bytes are needed, 2 are left",
        ),
        (b"\x80\x05\x91.", "no mark on the stack"),
        (b"\x80\x05N(K\x01\x90.", "items are appended to something that is not a list"),
    ] {
        assert_eq!(read(stream, &BINARY).unwrap_err().1, want);
    }
}

#[test]
fn streams_of_text_are_read_where_they_are_allowed() {
    let stream = b"(dp0\nVa\\u00e9\np1\n(lp2\nI-7\naS'x'\nasg1\ncsets\nSet\n(tRs.";
    let p = read(stream, &TEXT).unwrap();
    let Obj::Dict(entries) = &p.objects[p.root] else { panic!() };
    assert_eq!(p.objects[entries[0].0], Obj::Str("a\u{e9}".into()));
    let Obj::List(items) = &p.objects[entries[0].1] else { panic!() };
    assert_eq!([&p.objects[items[0]], &p.objects[items[1]]], [&Obj::Int(-7), &Obj::Str("x".into())]);
    assert!(matches!(&p.objects[entries[1].1], Obj::Call { function, .. } if function == "sets.Set"));
    assert_eq!(read(stream, &BINARY).unwrap_err(), (1, "opcode DICT (0x64) is not allowed".to_owned()));
}

/// A few bytes more of the stream must not copy all that went before once more.
#[test]
fn what_a_stream_repeats_is_limited_by_its_length() {
    const CALLS: Allowed =
        Allowed { calls: &["collections.OrderedDict"], prefixes: &["a."], hint: "", protocols: (2, 5) };
    let repeated = |start: &[u8], again: &[u8], count: usize| {
        let stream = [b"\x80\x02", start, &again.repeat(count), b"."].concat();
        read(&stream, &CALLS).map(|p| p.objects.len()).map_err(|(_, what)| what)
    };
    let long = 1 << 16;
    // A dictionary of a list of pairs, over and over.
    let pairs =
        [b"]q\x00(".as_slice(), &b"NN\x86".repeat(long), b"eccollections\nOrderedDict\nq\x01"].concat();
    // A call with many arguments.
    let args = [b"(".as_slice(), &b"N".repeat(long), b"tq\x00ca.\nb\nq\x01"].concat();
    // A call of a name of many letters.
    let name = [b"ca.".as_slice(), &b"b".repeat(long), b"\nc\nq\x01)q\x00"].concat();
    // Such a name, assembled from strings.
    let text = [&b"X\x00\x00\x01\x00"[..], &b"b".repeat(long), b"q\x00q\x01"].concat();
    let calls = [(&pairs, &b"h\x01h\x00\x85R"[..]), (&args, b"h\x01h\x00R"), (&name, b"h\x01h\x00R")];
    for (start, again) in calls.into_iter().chain([(&text, &b"h\x00h\x01\x93"[..])]) {
        assert!(repeated(start, again, 2).is_ok());
        let what = repeated(start, again, 10_000).unwrap_err();
        assert_eq!(what, "its objects repeat more of each other than the stream is long");
    }
}

#[test]
fn a_structure_may_hold_itself() {
    let p = read(b"\x80\x02]q\x00h\x00a.", &BINARY).unwrap();
    assert_eq!(p.objects[p.root], Obj::List(vec![p.root]));
}

proptest! {
    #[test]
    fn any_bytes_end_in_an_error_or_an_object(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut stream = vec![0x80, 2];
        stream.extend(bytes);
        for allowed in [BINARY, TEXT] {
            if let Ok(p) = read(&stream, &allowed) {
                prop_assert!(p.root < p.objects.len() && p.objects.len() <= stream.len());
            }
        }
    }
}
