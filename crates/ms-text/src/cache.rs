//! A cache file with a tokenizer's in-memory form, so that the next program starts immediately.
//!
//! A file is found by a fingerprint of everything a tokenizer is made from, so it never needs to be updated: another
//! `tokenizer.json` is another file. Nothing in it is trusted: its checksum, its fingerprint, every length and every id are
//! checked, and a file that does not fit is ignored and rewritten. Failing to write is not an error.
//!
//! Layout, little-endian: [`MAGIC`], CRC-32C of all that follows (`u32`), length of the header (`u32`), the header (JSON),
//! then the blocks whose element counts the header gives, without gaps.

use crate::engine::Parts;
use crate::vocabulary::{AddedToken, Texts};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::Path;

const MAGIC: [u8; 8] = *b"mstok\0\x01\n";
/// Files beyond this are not ours.
const MOST: u64 = 256 << 20;
const START: usize = MAGIC.len() + 8;

/// What is kept of a tokenizer besides its blocks.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// Of everything it was made from.
    pub(crate) fingerprint: String,
    pub(crate) content_hash: String,
    pub(crate) engine: String,
    /// Begin, end, padding, unknown token.
    pub(crate) roles: [Option<String>; 4],
    pub(crate) added: Vec<(u32, AddedToken)>,
    whole_words: bool,
    byte_level: bool,
    frame: String,
    around: [Vec<u32>; 2],
    /// Bytes of text, spans, sorted ids, pairs.
    blocks: [usize; 4],
}

/// A tokenizer as it was kept.
#[derive(Debug, PartialEq)]
pub(crate) struct CachedTokenizer {
    pub(crate) header: Header,
    pub(crate) texts: Texts,
    pub(crate) parts: Parts,
}

/// What a header is made from.
pub(crate) struct Facts {
    pub(crate) fingerprint: String,
    pub(crate) content_hash: String,
    pub(crate) engine: String,
    pub(crate) roles: [Option<String>; 4],
    pub(crate) added: Vec<(u32, AddedToken)>,
}

/// Reads a file; `None` if there is none, or it is damaged or another tokenizer's.
pub(crate) fn read(path: &Path, fingerprint: &str) -> Option<CachedTokenizer> {
    let file = std::fs::File::open(path).ok()?;
    let length = file.metadata().ok().filter(|m| m.is_file() && m.len() <= MOST)?.len();
    let mut bytes = Vec::with_capacity(usize::try_from(length).ok()?);
    file.take(MOST).read_to_end(&mut bytes).ok()?;
    let kept = parse(&bytes).filter(|kept| kept.header.fingerprint == fingerprint);
    if kept.is_none() {
        tracing::debug!(path = %path.display(), "not a kept tokenizer of this fingerprint; ignored");
    }
    kept
}

fn parse(bytes: &[u8]) -> Option<CachedTokenizer> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (crc, rest) = rest.split_at_checked(4)?;
    if crc32c::crc32c(rest) != u32::from_le_bytes(crc.try_into().ok()?) {
        return None;
    }
    let (length, rest) = rest.split_at_checked(4)?;
    let (header, mut rest) = rest.split_at_checked(u32::from_le_bytes(length.try_into().ok()?) as usize)?;
    let header: Header = serde_json::from_slice(header).ok()?;
    let mut block = |count: usize, width: usize| {
        let (block, after) = rest.split_at_checked(count.checked_mul(width)?)?;
        rest = after;
        Some(block)
    };
    let [texts, spans, sorted, pairs] = header.blocks;
    let texts = std::str::from_utf8(block(texts, 1)?).ok()?.to_owned();
    let spans = bytemuck::pod_collect_to_vec::<u8, [u32; 2]>(block(spans, 8)?);
    let sorted = bytemuck::pod_collect_to_vec::<u8, u32>(block(sorted, 4)?);
    let merged = block(pairs, 8)?;
    let parts = Parts {
        pairs: bytemuck::pod_collect_to_vec::<u8, u64>(merged),
        merged: bytemuck::pod_collect_to_vec::<u8, u64>(block(pairs, 8)?),
        whole_words: header.whole_words,
        byte_level: header.byte_level,
        frame: header.frame.clone(),
        around: header.around.clone(),
    };
    let texts = Texts::of_parts(texts, spans, sorted)?;
    rest.is_empty().then_some(CachedTokenizer { header, texts, parts })
}

fn compose(facts: Facts, texts: &Texts, parts: &Parts) -> Option<Vec<u8>> {
    // The blocks are written as they lie in memory.
    if cfg!(target_endian = "big") {
        return None;
    }
    let header = Header {
        fingerprint: facts.fingerprint,
        content_hash: facts.content_hash,
        engine: facts.engine,
        roles: facts.roles,
        added: facts.added,
        whole_words: parts.whole_words,
        byte_level: parts.byte_level,
        frame: parts.frame.clone(),
        around: parts.around.clone(),
        blocks: [texts.texts.len(), texts.spans.len(), texts.sorted.len(), parts.pairs.len()],
    };
    let header = serde_json::to_vec(&header).ok()?;
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend([0; 4]);
    out.extend(u32::try_from(header.len()).ok()?.to_le_bytes());
    out.extend(header);
    out.extend(texts.texts.as_bytes());
    out.extend(bytemuck::cast_slice::<[u32; 2], u8>(&texts.spans));
    out.extend(bytemuck::cast_slice::<u32, u8>(&texts.sorted));
    out.extend(bytemuck::cast_slice::<u64, u8>(&parts.pairs));
    out.extend(bytemuck::cast_slice::<u64, u8>(&parts.merged));
    let crc = crc32c::crc32c(&out[MAGIC.len() + 4..]);
    out[MAGIC.len()..START - 4].copy_from_slice(&crc.to_le_bytes());
    Some(out)
}

/// Writes a file under another name next to it, then renames it. Failures are only logged.
pub(crate) fn write(path: &Path, facts: Facts, texts: &Texts, parts: &Parts) {
    let Some(bytes) = compose(facts, texts, parts) else { return };
    let write = || -> Result<(), Box<dyn std::error::Error>> {
        let (name, mut file) = ms_files::Unfinished::create(path)?;
        file.write_all(&bytes)?;
        Ok(name.publish(false)?)
    };
    // Best effort, as all of this.
    if let Err(error) = write() {
        tracing::debug!(path = %path.display(), %error, "the tokenizer was not kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let texts = Texts::of_parts("abab".into(), vec![[0, 1], [1, 1], [2, 2]], vec![0, 2, 1]).unwrap();
        let parts = Parts {
            pairs: vec![1],
            merged: vec![2],
            byte_level: true,
            frame: "{}".into(),
            around: [vec![7], Vec::new()],
            ..Parts::default()
        };
        let facts = Facts {
            fingerprint: "f".into(),
            content_hash: "c".into(),
            engine: "e".into(),
            roles: [None, Some("</s>".into()), None, None],
            added: vec![(3, AddedToken::special("</s>"))],
        };
        compose(facts, &texts, &parts).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let kept = parse(&sample()).unwrap();
        assert_eq!((kept.texts.id("ab"), kept.parts.pairs[..].to_vec()), (Some(2), vec![1]));
        assert_eq!(
            (kept.header.roles[1].as_deref(), kept.parts.around[0][..].to_vec()),
            (Some("</s>"), vec![7])
        );
    }

    #[test]
    fn damage_of_any_byte_and_any_length_is_noticed() {
        let good = sample();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(parse(&bad), None, "byte {at}");
            assert_eq!(parse(&good[..at]), None, "length {at}");
        }
        assert_eq!(parse(&[&good[..], b"x"].concat()), None);
    }

    #[test]
    fn blocks_that_do_not_fit_are_refused_under_a_right_checksum() {
        let good = sample();
        let text = |from: &str, to: &str| {
            let mut bad = Vec::new();
            let at = good.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
            bad.extend(&good[..at]);
            bad.extend(to.as_bytes());
            bad.extend(&good[at + from.len()..]);
            let crc = crc32c::crc32c(&bad[12..]);
            bad[8..12].copy_from_slice(&crc.to_le_bytes());
            bad
        };
        assert!(parse(&text("[4,3,3,1]", "[4,3,3,1]")).is_some());
        for blocks in ["[5,3,3,1]", "[4,3,3,2]", "[4,9,3,1]", "[4,2,5,1]", "[0,0,0,0]", "[4,3,3,9]"] {
            assert_eq!(parse(&text("[4,3,3,1]", blocks)), None, "{blocks}");
        }
        // More elements than there are addresses.
        assert_eq!(parse(&text("\"blocks\":[4,3,3,1]}", "\"blocks\":[1,18446744073709551615,1]}")), None);
        // A span beyond the texts, an id without a text.
        for (at, value) in [(5usize, 9u32), (6, 9)] {
            let mut bad = good.clone();
            let blocks = bad.len() - 16 - 12 - 24;
            bad[blocks + at * 4..][..4].copy_from_slice(&value.to_le_bytes());
            let crc = crc32c::crc32c(&bad[12..]);
            bad[8..12].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(parse(&bad), None, "word {at}");
        }
    }
}
