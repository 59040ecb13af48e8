//! Statistics of row lengths and of trained tokens.

use crate::handler::Row;
use crate::sft::IGNORED;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Buckets of a doubling of the length.
const PER_OCTAVE: u32 = 8;

/// A histogram of the lengths of rows, in tokens, and the shares that are masked or too long.
///
/// Lengths up to 16 have buckets of their own; above, eight buckets divide every doubling, so a percentile is exact to an
/// eighth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lengths {
    counts: Vec<u64>,
    rows: u64,
    tokens: u64,
    shortest: u64,
    longest: u64,
    labels: u64,
    masked: u64,
    too_long: u64,
    limit: Option<u64>,
    labels_at: Option<usize>,
}

impl Lengths {
    /// An empty histogram of rows with these columns; `limit` is `--seq-length`.
    pub fn new(columns: &[String], limit: Option<u64>) -> Self {
        // Upstream's columns of labels are called labels or chosen_labels.
        let labels_at = columns.iter().position(|name| name == "labels" || name == "chosen_labels");
        Self { limit, labels_at, ..Self::default() }
    }

    /// Counts a row by its first column.
    pub fn add(&mut self, row: &Row) {
        let Some(Some(ids)) = row.columns.first() else { return };
        let length = ids.len() as u64;
        let bucket = bucket_of(length);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.shortest = if self.rows == 0 { length } else { self.shortest.min(length) };
        self.longest = self.longest.max(length);
        self.rows += 1;
        self.tokens += length;
        self.too_long += u64::from(self.limit.is_some_and(|limit| length >= limit));
        if let Some(Some(labels)) = self.labels_at.and_then(|at| row.columns.get(at)) {
            self.labels += labels.len() as u64;
            self.masked += labels.iter().filter(|&&id| id == IGNORED).count() as u64;
        }
    }

    /// The length that a share `p` of the rows does not exceed, to the end of its bucket.
    fn percentile(&self, p: f64) -> u64 {
        let wanted = (self.rows as f64 * p).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted.max(1) {
                return bounds(bucket).1.min(self.longest);
            }
        }
        self.longest
    }

    fn share(part: u64, whole: u64) -> f64 {
        if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
    }

    /// All numbers; without `seconds` (0) no speed, so that the same rows give the same text. `buckets` holds the first and last
    /// length of each and its rows.
    pub fn to_json(&self, seconds: f64) -> Value {
        let buckets: Vec<Value> = (self.counts.iter().enumerate())
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| json!([bounds(bucket).0, bounds(bucket).1, count]))
            .collect();
        json!({
            "rows": self.rows,
            "tokens": self.tokens,
            "tokens_per_second": (seconds > 0.0).then(|| self.tokens as f64 / seconds),
            "length": {
                "min": self.shortest, "mean": Self::share(self.tokens, self.rows), "p50": self.percentile(0.5),
                "p90": self.percentile(0.9), "p99": self.percentile(0.99), "max": self.longest,
            },
            "masked_share": self.labels_at.map(|_| Self::share(self.masked, self.labels)),
            "seq_length": self.limit,
            "truncated_share": self.limit.map(|_| Self::share(self.too_long, self.rows)),
            "buckets": buckets,
        })
    }

    /// Rows by doubling halves, for drawing: first and last length and the count.
    fn bars(&self) -> Vec<(u64, u64, u64)> {
        let mut bars: Vec<(u64, u64, u64)> = Vec::new();
        for (bucket, &count) in self.counts.iter().enumerate() {
            let (from, to) = bounds(bucket);
            // Up to 16 a bar holds a doubling of the length; above, half of one.
            let starts =
                if from <= 16 { from.is_power_of_two() && from < 16 } else { (bucket - 17) % 4 == 0 };
            match bars.last_mut() {
                Some(bar) if !starts => *bar = (bar.0, to, bar.2 + count),
                _ => bars.push((from, to, count)),
            }
        }
        let first = bars.iter().position(|bar| bar.2 > 0).unwrap_or(bars.len());
        bars.drain(..first);
        bars
    }

    /// A few lines with bars of at most `width` characters.
    pub fn draw(&self, width: usize, seconds: f64) -> String {
        let mut out = String::new();
        let bars = self.bars();
        let most = bars.iter().map(|bar| bar.2).max().unwrap_or(0).max(1);
        let digits = self.longest.max(1).ilog10() as usize + 1;
        for (from, to, count) in bars {
            // Eighths of a character, so that small bars are seen.
            let eighths = (count as f64 / most as f64 * width as f64 * 8.0).round() as usize;
            let mut bar = "█".repeat(eighths / 8);
            bar.extend(["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(eighths % 8).copied());
            if bar.is_empty() && count > 0 {
                bar.push('▏');
            }
            let _ = writeln!(out, "{from:>digits$} - {to:>digits$} {count:>9} {bar}");
        }
        let _ = writeln!(
            out,
            "tokens of a row: {} to {}, mean {:.1}, half up to {}, 99 % up to {}",
            self.shortest,
            self.longest,
            Self::share(self.tokens, self.rows),
            self.percentile(0.5),
            self.percentile(0.99)
        );
        if seconds > 0.0 {
            let _ = writeln!(out, "{:.0} tokens per second", self.tokens as f64 / seconds);
        }
        if self.labels_at.is_some() {
            let _ = writeln!(
                out,
                "{:.1} % of the labels are masked",
                100.0 * Self::share(self.masked, self.labels)
            );
        }
        if let Some(limit) = self.limit {
            let share = 100.0 * Self::share(self.too_long, self.rows);
            let _ =
                writeln!(out, "{share:.1} % of the rows have {limit} tokens or more and are cut or left out");
        }
        out
    }

    /// The histogram as a picture.
    pub fn to_svg(&self, title: &str) -> String {
        const WIDTH: f64 = 720.0;
        const HEIGHT: f64 = 240.0;
        const LEFT: f64 = 64.0;
        const TOP: f64 = 36.0;
        let bars = self.bars();
        let most = bars.iter().map(|bar| bar.2).max().unwrap_or(0).max(1);
        let step = WIDTH / bars.len().max(1) as f64;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n",
            WIDTH + LEFT + 16.0,
            HEIGHT + TOP + 56.0
        );
        let _ = writeln!(out, "<title>{}</title>", escaped(title));
        let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>", escaped(title));
        for (i, (from, to, count)) in bars.iter().enumerate() {
            let height = *count as f64 / most as f64 * HEIGHT;
            let (x, y) = (LEFT + i as f64 * step, TOP + HEIGHT - height);
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"#3b6ea5\"><title>{from} to {to} tokens: {count} rows</title></rect>",
                x + 1.0,
                (step - 2.0).max(1.0)
            );
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{from}</text>",
                x + step / 2.0,
                TOP + HEIGHT + 16.0
            );
        }
        let baseline = TOP + HEIGHT;
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{baseline}\" x2=\"{}\" y2=\"{baseline}\" stroke=\"#444\"/>",
            LEFT + WIDTH
        );
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">tokens of a row, from</text>",
            LEFT + WIDTH / 2.0,
            baseline + 40.0
        );
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{most}</text>",
            LEFT - 6.0,
            TOP + 10.0
        );
        let _ =
            writeln!(out, "<text x=\"{}\" y=\"{baseline}\" text-anchor=\"end\">0 rows</text>", LEFT - 6.0);
        out.push_str("</svg>\n");
        out
    }
}

fn bucket_of(length: u64) -> usize {
    if length <= 16 {
        return length as usize;
    }
    // 17.. : the octave from 16 on, and the eighth of it.
    let length = length - 1;
    let octave = length.ilog2() - 4;
    let eighth = (length >> (octave + 1)) & 7;
    (17 + octave * PER_OCTAVE + eighth as u32) as usize
}

/// First and last length of a bucket.
fn bounds(bucket: usize) -> (u64, u64) {
    if bucket <= 16 {
        return (bucket as u64, bucket as u64);
    }
    let (octave, eighth) = ((bucket as u32 - 17) / PER_OCTAVE, (bucket as u64 - 17) % u64::from(PER_OCTAVE));
    let width = 2u64 << octave;
    let from = (16u64 << octave) + eighth * width + 1;
    (from, from + width - 1)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_divide_all_lengths() {
        let mut next = 0;
        for bucket in 0..200 {
            let (from, to) = bounds(bucket);
            assert_eq!(from, next, "bucket {bucket}");
            assert_eq!((bucket_of(from), bucket_of(to)), (bucket, bucket));
            next = to + 1;
        }
    }

    #[test]
    fn shares_and_percentiles_are_those_of_the_rows() {
        let columns = ["input_ids", "attention_mask", "labels"].map(str::to_owned);
        let mut lengths = Lengths::new(&columns, Some(90));
        for n in 1..=100usize {
            let mut labels = vec![IGNORED; n / 2];
            labels.resize(n, 1);
            lengths.add(&Row::new(vec![Some(vec![1; n]), None, Some(labels)]));
        }
        let json = lengths.to_json(2.0);
        assert_eq!((&json["rows"], &json["tokens"]), (&100.into(), &5050.into()));
        assert_eq!(json["tokens_per_second"], 2525.0);
        assert_eq!(json["length"]["p50"], 52, "the bucket from 49 to 52");
        assert_eq!((&json["length"]["min"], &json["length"]["max"]), (&1.into(), &100.into()));
        assert_eq!(json["truncated_share"], 0.11);
        assert_eq!(json["masked_share"], 2500.0 / 5050.0);
        let total: u64 = json["buckets"].as_array().unwrap().iter().map(|b| b[2].as_u64().unwrap()).sum();
        assert_eq!(total, 100);
        let drawn = lengths.draw(20, 2.0);
        assert!(drawn.contains("11.0 % of the rows have 90 tokens or more"), "{drawn}");
        assert_eq!(drawn.lines().filter(|line| line.contains('█')).count(), 9, "{drawn}");
        let svg = lengths.to_svg("a < b");
        assert!(
            svg.contains("<text x=\"64\" y=\"20\" font-size=\"14\">a &lt; b</text>")
                && svg.ends_with("</svg>\n")
        );
    }
}
