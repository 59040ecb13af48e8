//! A shard's note or token stream of any bytes, the other sound: the first byte chooses. Refused, done again, or merged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_data::handler::{Handler, HandlerOptions, RecordKind};
use ms_data::preprocess::shards::Shards;
use ms_data::preprocess::{Output, RecordSelection};
use ms_data::records::{Documents, InputFile, discover};
use ms_data::select::Dedup;
use ms_data::sink::IndexedSink;
use ms_data::token_stream::StreamInfo;
use ms_fuzz::{Scratch, seed_of};
use ms_text::{Tokenizer, bpe};
use std::sync::LazyLock;

/// Stands in a note for what the shard was made from, which differs from run to run.
const PLACE: &str = "FINGERPRINT";

struct Workshop {
    scratch: Scratch,
    handler: Handler,
    files: Vec<InputFile>,
    selection: RecordSelection,
    fingerprint: String,
    /// The note and the stream.
    sound: [Vec<u8>; 2],
}

impl Workshop {
    fn shards(&self) -> Shards<'_> {
        let (files, info) = (self.files.clone(), StreamInfo::default());
        Shards::new(&self.scratch.path("work"), files, String::new(), &self.handler, &self.selection, info)
            .expect("a folder")
    }

    fn put(&self, [note, stream]: [&[u8]; 2]) {
        let note = String::from_utf8_lossy(note).replace(PLACE, &self.fingerprint);
        self.scratch.write("work/000000.json", note.as_bytes());
        self.scratch.write("work/000000.tokens", stream);
    }
}

static SHOP: LazyLock<Workshop> = LazyLock::new(|| {
    let scratch = Scratch::new();
    let options = bpe::Options { vocab_size: 270, ..bpe::Options::default() };
    let trained = bpe::train(&options, ["the cat sat on the mat".repeat(3)]).expect("a text");
    trained.write(scratch.path("tokenizer")).expect("a folder");
    let tokenizer = Tokenizer::load(scratch.path("tokenizer")).expect("it was written");
    let handler = Handler::new(HandlerOptions::new(RecordKind::Pretrain), tokenizer).expect("a sound handler");
    let texts = scratch.write("a.jsonl", b"{\"text\":\"the cat\"}\n{\"text\":\"the cat\"}\n{\"text\":\"sat\"}\n");
    let files = discover(&texts, Documents::Records).expect("a file");
    let selection = RecordSelection { dedup: Some(Dedup::Exact), ..RecordSelection::default() };
    let mut shop =
        Workshop { scratch, handler, files, selection, fingerprint: String::new(), sound: Default::default() };
    shop.shards().encode(0, 1, |_| ()).expect("sound texts");
    let read = |name: &str| std::fs::read(shop.scratch.path(name)).expect("it was written");
    let [note, stream] = ["work/000000.json", "work/000000.tokens"].map(read);
    let parsed: serde_json::Value = serde_json::from_slice(&note).expect("JSON");
    shop.fingerprint = parsed["fingerprint"].as_str().expect("a text").to_owned();
    let note = String::from_utf8(note).expect("JSON").replace(&shop.fingerprint, PLACE);
    shop.sound = [note.into_bytes(), stream];
    shop
});

fn seeds() {
    for (number, bytes) in SHOP.sound.iter().enumerate() {
        seed_of(number as u8, ["note", "stream"][number], bytes);
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let mut files = SHOP.sound.each_ref().map(|sound| &sound[..]);
    files[usize::from(which) % 2] = bytes;
    SHOP.put(files);
    let shards = SHOP.shards();
    let pending = shards.pending(0, 1).expect("a text that is there");
    let sink = IndexedSink::create(&[SHOP.scratch.path("out")], Some(5)).expect("a folder");
    let merged = shards.merge(&mut Output::new(Box::new(sink)), |_| ());
    assert!(pending.is_empty() || merged.is_err());
});
