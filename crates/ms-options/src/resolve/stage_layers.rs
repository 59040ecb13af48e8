//! Unequal numbers of layers per stage and chunk, from upstream's flags.

use anyhow::Result;
use ms_cli::Usage;
use ms_spec::ModelConfig;

options! {
    /// How many layers each stage holds, in other words than `--num-layer-list`.
    pub(crate) struct StageLayerOptions in "Pipeline" {
        first: Option<usize> = "--decoder-first-pipeline-num-layers", "number of layers of the first stage; the other stages share the rest", range = "[1,16384]";
        last: Option<usize> = "--decoder-last-pipeline-num-layers", "number of layers of the last stage; the other stages share the rest", range = "[1,16384]";
        embedding_counts: bool = "--account-for-embedding-in-pipeline-split", "count the embedding as one layer when splitting into stages";
        loss_counts: bool = "--account-for-loss-in-pipeline-split", "count output layer and loss as one layer when splitting into stages";
        embedding_apart: bool = "--standalone-embedding-stage", "the first stage holds the embedding only";
        layout: Option<String> = "--pipeline-model-parallel-layout", "what each chunk holds, in the order in which a micro-batch passes them, such as Et|(tt|)*2,tL: E embedding, t layer, m MTP module, L loss";
        of_chunks: Option<String> = "--pipeline-num-transformer-layers", "number of layers of each chunk, a row per stage, such as [[0,1],[1,1]*2,[1,0]]";
    }
}

/// What the flags are about.
pub(crate) struct Sizes {
    /// Stages.
    pub(crate) pp: usize,
    /// Places of layers, empty ones included.
    pub(crate) slots: usize,
    /// Layers of a chunk, where that is said.
    pub(crate) per_chunk: Option<usize>,
    /// Chunks of a stage, where that is said.
    pub(crate) chunks: Option<usize>,
    /// Whether some places are empty.
    pub(crate) noop: bool,
    /// A flag that shares layers out in another way.
    pub(crate) other: Option<&'static str>,
}

impl StageLayerOptions {
    /// None of them.
    pub(crate) fn none() -> Self {
        Self {
            first: None,
            last: None,
            embedding_counts: false,
            loss_counts: false,
            embedding_apart: false,
            layout: None,
            of_chunks: None,
        }
    }

    /// The flags that are given.
    pub(crate) fn given(&self) -> impl Iterator<Item = &'static str> {
        self.flags().into_iter().filter_map(|(given, flag)| given.then_some(flag))
    }

    fn flags(&self) -> [(bool, &'static str); 7] {
        [
            (self.layout.is_some(), "--pipeline-model-parallel-layout"),
            (self.of_chunks.is_some(), "--pipeline-num-transformer-layers"),
            (self.embedding_apart, "--standalone-embedding-stage"),
            (self.first.is_some(), "--decoder-first-pipeline-num-layers"),
            (self.last.is_some(), "--decoder-last-pipeline-num-layers"),
            (self.embedding_counts, "--account-for-embedding-in-pipeline-split"),
            (self.loss_counts, "--account-for-loss-in-pipeline-split"),
        ]
    }

    /// Places of layers of each chunk, in the order in which a micro-batch passes them; `None`: nothing is said.
    ///
    /// # Errors
    /// For numbers that do not fit, and ways that exclude each other, as upstream refuses them.
    ///
    /// # Source
    /// Megatron-LM `core_v0.12.1`, `megatron/core/transformer/transformer_config.py`, `transformer_block.py`,
    /// `get_num_layers_to_build`, and `transformer_layer.py`, `get_transformer_layer_offset`; MindSpeed (2026),
    /// `features_manager/pipeline_parallel/pipeline_model_parallel_layout_feature.py` and `unaligned_pineline_feature.py`;
    /// `--standalone-embedding-stage` as in Megatron-LM `core_r0.8.0`, `megatron/legacy/model/transformer.py`: its core leaves
    /// the layers where they are.
    pub(crate) fn list(&self, sizes: &Sizes, model: &ModelConfig) -> Result<Option<Vec<usize>>> {
        let Some(flag) = self.given().next() else { return Ok(None) };
        let refused = |message: String| Err(Usage(format!("{flag}: {message}")).into());
        // Those that may stand together are the last two pairs.
        let group = |i: usize| if i < 3 { i } else { 3 + (i - 3) / 2 };
        let mut groups = self.flags().into_iter().enumerate().filter(|(_, (given, _))| *given);
        let first = groups.next().map_or(0, |(i, _)| group(i));
        let second = groups.find(|&(i, _)| group(i) != first).map(|(_, (_, flag))| flag);
        if let Some(other) = sizes.other.or(second) {
            return refused(format!(
                "cannot be combined with {other}, which shares layers out in another way"
            ));
        }
        if let Some(layout) = &self.layout {
            if sizes.per_chunk.or(sizes.chunks).is_some() || sizes.noop {
                return refused(
                    "cannot be combined with numbers of chunks or --noop-layers: it says what every chunk holds".into(),
                );
            }
            return layout_list(layout, sizes, model).map(Some).or_else(refused);
        }
        if let Some(rows) = &self.of_chunks {
            if sizes.noop {
                return refused("cannot be combined with --noop-layers: chunks may hold no layer".into());
            }
            return rows_list(rows, sizes).map(Some).or_else(refused);
        }
        if sizes.pp == 1 {
            return if self.embedding_counts || self.loss_counts {
                Ok(None)
            } else {
                refused("needs several stages: pass --pipeline-model-parallel-size".into())
            };
        }
        let list = match (self.first, self.last) {
            (None, None) => self.counted(sizes),
            (first, last) => ends(first, last, sizes),
        };
        list.map(Some).or_else(refused)
    }

    /// Equal chunks, of which the ends give up places.
    fn counted(&self, sizes: &Sizes) -> Result<Vec<usize>, String> {
        let alone = usize::from(self.embedding_apart);
        let stages = sizes.pp - alone;
        let (first, last) = (usize::from(self.embedding_counts), usize::from(self.loss_counts));
        let places = sizes.slots + first + last;
        let of_stage = equal(places, stages)?;
        let of_chunk = match (sizes.per_chunk, sizes.chunks) {
            (Some(n), _) if n > 0 && of_stage.is_multiple_of(n) => n,
            (Some(n), _) => {
                return Err(format!("{of_stage} places of a stage are not divisible by chunks of {n}"));
            }
            (None, chunks) => equal(of_stage, chunks.unwrap_or(1))?,
        };
        let chunks = of_stage.checked_div(of_chunk).unwrap_or(1);
        let one = |p: usize| if p < alone { 0 } else { of_chunk };
        let mut list: Vec<usize> = (0..chunks).flat_map(|_| (0..sizes.pp).map(one)).collect();
        let end = list.len() - 1;
        for (at, taken) in [(0, first), (end, last)] {
            list[at] = list[at].checked_sub(taken).ok_or("a chunk has no place to give up")?;
        }
        Ok(list)
    }
}

/// `n` places on each of `parts`.
fn equal(n: usize, parts: usize) -> Result<usize, String> {
    if parts > 0 && n.is_multiple_of(parts) {
        Ok(n / parts)
    } else {
        let near = ms_core::nearest_divisors(n, parts);
        Err(format!("{n} places for layers are not divisible by {parts}; {near}"))
    }
}

/// So many layers on the first stage and on the last, the others alike.
fn ends(first: Option<usize>, last: Option<usize>, sizes: &Sizes) -> Result<Vec<usize>, String> {
    if sizes.per_chunk.is_some() {
        return Err(
            "needs --num-virtual-stages-per-pipeline-rank instead of layers per chunk, as in upstream".into(),
        );
    }
    let chunks = sizes.chunks.unwrap_or(1);
    let middle = sizes.pp - usize::from(first.is_some()) - usize::from(last.is_some());
    let taken = first.unwrap_or(0) + last.unwrap_or(0);
    let rest = sizes.slots.checked_sub(taken).ok_or_else(|| format!("{taken} of {} layers", sizes.slots))?;
    let each = match (middle, rest) {
        (0, 0) => 0,
        (0, rest) => return Err(format!("{rest} layers are left for no stage")),
        _ => equal(rest, middle)?,
    };
    let of_stage = |p: usize| match (p, first, last) {
        (0, Some(n), _) => n,
        (p, _, Some(n)) if p + 1 == sizes.pp => n,
        _ => each,
    };
    let of_chunk = (0..sizes.pp).map(|p| equal(of_stage(p), chunks)).collect::<Result<Vec<_>, _>>()?;
    Ok((0..chunks).flat_map(|_| of_chunk.iter().copied()).collect())
}

/// Most pieces of a layout: what is repeated may be absurd.
const MOST: usize = 1 << 16;

/// A layout without cosmetic commas and repetitions: `(…)*n` first, then `x*n` of one letter.
fn unrolled(layout: &str) -> Result<String, String> {
    let times = |rest: &str| {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse::<usize>().ok().filter(|n| *n <= MOST).map(|n| (n, digits))
    };
    let mut text: String = layout.chars().filter(|c| *c != ',' && !c.is_whitespace()).collect();
    let mut made = String::new();
    while let Some(open) = text.find('(') {
        let close = text[open..].find(")*").map(|i| open + i).ok_or("expected (…)*n")?;
        let (n, digits) = times(&text[close + 2..]).ok_or("expected a number behind )*")?;
        if made.len() + open + (close - open - 1).saturating_mul(n) > MOST {
            return Err(format!("more than {MOST} pieces"));
        }
        made.push_str(&text[..open]);
        made.push_str(&text[open + 1..close].repeat(n));
        text.drain(..close + 2 + digits);
    }
    made.push_str(&text);
    let (mut list, mut rest) = (String::new(), made.as_str());
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        let mut n = 1;
        if let Some(behind) = rest.strip_prefix('*') {
            let (many, digits) = times(behind).ok_or("expected a number behind *")?;
            (n, rest) = (many, &behind[digits..]);
        }
        if list.len() + n > MOST {
            return Err(format!("more than {MOST} pieces"));
        }
        (0..n).for_each(|_| list.push(letter));
    }
    Ok(list)
}

fn layout_list(layout: &str, sizes: &Sizes, model: &ModelConfig) -> Result<Vec<usize>, String> {
    let text = unrolled(layout)?;
    if let Some(other) = text.chars().find(|c| !"EtmL|".contains(*c)) {
        return Err(format!("expected E, t, m, L and | between chunks, found {other:?}"));
    }
    let count = |letter| text.chars().filter(|c| *c == letter).count();
    let ends = text.starts_with('E') && text.ends_with('L') && count('E') == 1 && count('L') == 1;
    if !ends {
        return Err("expected one E, at the beginning, and one L, at the end".into());
    }
    for (letter, what, n) in [('t', "layers", model.layers), ('m', "prediction modules", model.mtp)] {
        if count(letter) != n {
            return Err(format!("expected {letter} for each of the {n} {what}, found {}", count(letter)));
        }
    }
    let chunks: Vec<&str> = text.split('|').collect();
    let (last, before) = chunks.split_last().expect("a text has a part");
    if before.iter().any(|chunk| chunk.contains('m')) || last.trim_start_matches(['E', 't']).contains('t') {
        return Err("prediction modules are where the output layer is, behind the layers: they share its states and weights".into());
    }
    if !chunks.len().is_multiple_of(sizes.pp) {
        return Err(format!(
            "{} chunks are not divisible by --pipeline-model-parallel-size {}",
            chunks.len(),
            sizes.pp
        ));
    }
    Ok(chunks.iter().map(|chunk| chunk.chars().filter(|c| *c == 't').count()).collect())
}

fn rows_list(text: &str, sizes: &Sizes) -> Result<Vec<usize>, String> {
    let found: String = text.chars().take(80).collect();
    let form =
        || format!("expected a row for each of {} stages, [[0,1],[1,1]*2,[1,0]], found {found}", sizes.pp);
    let inner: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let mut rest = inner.strip_prefix('[').and_then(|t| t.strip_suffix(']')).ok_or_else(form)?;
    let mut rows: Vec<Vec<usize>> = Vec::new();
    while !rest.is_empty() {
        if !rows.is_empty() {
            rest = rest.strip_prefix(',').ok_or_else(form)?;
        }
        let (row, behind) = rest.strip_prefix('[').and_then(|t| t.split_once(']')).ok_or_else(form)?;
        let mut numbers = Vec::new();
        for word in row.split(',') {
            let (number, times) = word.split_once('*').unwrap_or((word, "1"));
            let (number, times): (usize, usize) =
                number.parse().ok().zip(times.parse().ok()).filter(|(_, n)| *n <= MOST).ok_or_else(form)?;
            if numbers.len() + times > MOST {
                return Err(form());
            }
            numbers.extend(std::iter::repeat_n(number, times));
        }
        let (mut times, mut after) = (1, behind);
        if let Some(more) = behind.strip_prefix('*') {
            let digits = more.find(|c: char| !c.is_ascii_digit()).unwrap_or(more.len());
            times = more[..digits].parse().ok().filter(|n| *n <= MOST).ok_or_else(form)?;
            after = &more[digits..];
        }
        if (rows.len() + times).saturating_mul(numbers.len().max(1)) > MOST {
            return Err(form());
        }
        rows.extend(std::iter::repeat_n(numbers, times));
        rest = after;
    }
    let chunks = rows.first().map_or(0, Vec::len);
    if rows.len() != sizes.pp || chunks == 0 || rows.iter().any(|row| row.len() != chunks) {
        return Err(form());
    }
    let said = match (sizes.chunks, sizes.per_chunk) {
        (Some(n), _) => Some(n),
        (None, Some(n)) => sizes.slots.checked_div(n * sizes.pp),
        (None, None) => None,
    };
    if let Some(said) = said.filter(|n| *n != chunks) {
        return Err(format!("{chunks} chunks of a stage, where the other flags say {said}"));
    }
    let sum = rows.iter().flatten().try_fold(0usize, |sum, &n| sum.checked_add(n));
    if sum != Some(sizes.slots) {
        let sum = sum.map_or_else(|| "too many".to_owned(), |n| n.to_string());
        return Err(format!("{sum} layers, expected the {} of the model", sizes.slots));
    }
    Ok((0..chunks).flat_map(|v| rows.iter().map(move |row| row[v])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(pp: usize, slots: usize) -> Sizes {
        Sizes { pp, slots, per_chunk: None, chunks: None, noop: false, other: None }
    }

    fn none() -> StageLayerOptions {
        StageLayerOptions::none()
    }

    fn list(shares: &StageLayerOptions, sizes: &Sizes, mtp: usize) -> Result<Vec<usize>, String> {
        let model = ModelConfig { layers: sizes.slots, mtp, ..ModelConfig::default() };
        shares.list(sizes, &model).map(Option::unwrap_or_default).map_err(|e| e.to_string())
    }

    #[test]
    fn the_ends_hold_what_is_said_and_the_others_share_the_rest() {
        let both = StageLayerOptions { first: Some(1), last: Some(3), ..none() };
        assert_eq!(list(&both, &sizes(4, 8), 0).unwrap(), [1, 2, 2, 3]);
        assert_eq!(
            list(&StageLayerOptions { last: None, ..both.clone() }, &sizes(3, 9), 0).unwrap(),
            [1, 4, 4]
        );
        let chunks = Sizes { chunks: Some(2), ..sizes(3, 12) };
        assert_eq!(
            list(&StageLayerOptions { first: Some(2), last: Some(4), ..none() }, &chunks, 0).unwrap(),
            [1, 3, 2, 1, 3, 2]
        );
        for (sizes, why) in [
            (sizes(4, 9), "5 places"),
            (sizes(2, 9), "left for no stage"),
            (Sizes { chunks: Some(2), ..sizes(4, 8) }, "1 places"),
            (Sizes { per_chunk: Some(1), ..sizes(4, 8) }, "as in upstream"),
            (Sizes { other: Some("--num-layer-list"), ..sizes(4, 8) }, "--num-layer-list"),
            (self::sizes(1, 8), "several stages"),
            (self::sizes(4, 2), "4 of 2 layers"),
        ] {
            let message = list(&both, &sizes, 0).unwrap_err();
            assert!(
                message.starts_with("--decoder-first-pipeline-num-layers: ") && message.contains(why),
                "{message}"
            );
        }
    }

    #[test]
    fn what_counts_as_a_layer_takes_the_place_of_one() {
        let (embedding, loss) = (
            StageLayerOptions { embedding_counts: true, ..none() },
            StageLayerOptions { loss_counts: true, ..none() },
        );
        let both = StageLayerOptions { loss_counts: true, ..embedding.clone() };
        assert_eq!(list(&embedding, &sizes(4, 7), 0).unwrap(), [1, 2, 2, 2]);
        assert_eq!(list(&loss, &sizes(4, 7), 0).unwrap(), [2, 2, 2, 1]);
        assert_eq!(list(&both, &sizes(4, 2), 0).unwrap(), [0, 1, 1, 0]);
        let chunks = Sizes { per_chunk: Some(1), ..sizes(2, 2) };
        assert_eq!(list(&both, &chunks, 0).unwrap(), [0, 1, 1, 0]);
        // Upstream's one stage holds all layers.
        assert!(list(&both, &sizes(1, 2), 0).unwrap().is_empty());
        assert!(list(&both, &sizes(4, 4), 0).unwrap_err().contains("6 places"));
        let apart = StageLayerOptions { embedding_apart: true, ..none() };
        assert_eq!(list(&apart, &sizes(3, 4), 0).unwrap(), [0, 2, 2]);
        assert_eq!(list(&apart, &Sizes { chunks: Some(2), ..sizes(3, 4) }, 0).unwrap(), [0, 1, 1, 0, 1, 1]);
        assert!(
            list(&StageLayerOptions { embedding_counts: true, ..apart }, &sizes(3, 4), 0)
                .unwrap_err()
                .contains("cannot be combined with")
        );
    }

    #[test]
    fn layouts_are_read_as_upstream_reads_them() {
        let of = |text: &str| StageLayerOptions { layout: Some(text.into()), ..none() };
        assert_eq!(list(&of("Ettt|(tt|)*2,t,mL"), &sizes(2, 8), 1).unwrap(), [3, 2, 2, 1]);
        assert_eq!(list(&of("E|t*3|(t|)*1L"), &sizes(2, 4), 0).unwrap(), [0, 3, 1, 0]);
        assert_eq!(list(&of("E t,t | t L"), &sizes(1, 3), 0).unwrap(), [2, 1]);
        for (text, mtp, why) in [
            ("tE|ttL", 0, "one E"),
            ("Et|tt", 0, "one E"),
            ("Ett|ttL", 0, "3 layers"),
            ("Ett|mt|L|", 1, "one E"),
            ("Ett|m|tL", 1, "output layer"),
            ("Et|tx|tL", 0, "'x'"),
            ("Et|t|tL", 0, "3 chunks"),
            ("E(t|*3L", 0, "(…)*n"),
            ("Et*99999999999|tL", 0, "number"),
            ("E((t|)*60000)*60000L", 0, "pieces"),
            ("E(tttttttttt|)*60000L", 0, "pieces"),
            (&format!("E({})*65536L", "t".repeat(60_000)), 0, "pieces"),
        ] {
            let message = list(&of(text), &sizes(2, 3), mtp).unwrap_err();
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    #[test]
    fn rows_of_chunks_are_taken_in_turns() {
        let of = |text: &str| StageLayerOptions { of_chunks: Some(text.into()), ..none() };
        assert_eq!(list(&of("[[0,1],[1,1]*2,[1,0]]"), &sizes(4, 6), 0).unwrap(), [0, 1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(list(&of("[[1],[2]*2]"), &sizes(3, 5), 0).unwrap(), [1, 2, 2]);
        assert_eq!(list(&of("[[1*2], [2*2]]"), &sizes(2, 6), 0).unwrap(), [1, 2, 1, 2]);
        let absurd = format!("[[{}1]]", "1*65536,".repeat(8000));
        let wrong =
            ["", "[]", "[[1],[2]", "[[1],[1,2]]", "[[1]]", "[[a],[1]]", "[[1]*99999999999]", "[[1][2]]"];
        for text in wrong.into_iter().chain(["[[1],,[2]]", &absurd]) {
            assert!(list(&of(text), &sizes(2, 3), 0).unwrap_err().contains("a row for each"), "{text}");
        }
        assert_eq!(
            list(&of("[[1],[3]]"), &sizes(2, 3), 0).unwrap_err(),
            "--pipeline-num-transformer-layers: 4 layers, expected the 3 of the model"
        );
        let three = Sizes { chunks: Some(3), ..sizes(2, 4) };
        assert!(list(&of("[[1,1],[1,1]]"), &three, 0).unwrap_err().contains("say 3"));
    }
}
