//! How a line is split.

use super::words::words;
use super::*;

fn cut(line: &str) -> Vec<&str> {
    words(line, Edition::V3_8).collect()
}

#[test]
fn words_keep_their_periods_and_lose_other_marks() {
    assert_eq!(cut("He said: \"e.g., this.\""), ["He", "said", ":", "\"", "e.g.", ",", "this.", "\""]);
    assert_eq!(cut("a--b...c . . . d"), ["a", "--", "b", "...", "c", ". . .", "d"]);
    assert_eq!(cut("3,5, x,y ,z"), ["3,5", ",", "x,y", ",", "z"]);
    assert_eq!(cut("don't (so) -x #y"), ["don", "'t", "(", "so", ")", "-", "x", "#", "y"]);
    assert_eq!(cut(". . x"), [".", ".", "x"]);
    assert_eq!(cut(" \t "), [""; 0]);
}

#[test]
fn only_later_editions_close_sentences_with_typographic_quotes() {
    let line = "end.” Next";
    assert_eq!(words(line, Edition::V3_8).collect::<Vec<_>>(), ["end.”", "Next"]);
    assert_eq!(words(line, Edition::V3_10_2).collect::<Vec<_>>(), ["end.", "”", "Next"]);
}
