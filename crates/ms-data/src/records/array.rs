//! Elements of a JSON array, one at a time, without holding the array.

use crate::Reason;
use std::io::{BufRead, Error, ErrorKind, Result};

/// Finds the ends of an array's elements. Whether an element is valid JSON is for whoever parses it.
#[derive(Default)]
pub(super) struct ArrayScanner {
    state: State,
    /// Line ends before the element that was given last.
    line: u64,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    /// After `[`: an element, or the end.
    #[default]
    First,
    /// After `,`: an element must follow.
    Element,
    /// After an element: `,` or the end.
    Comma,
    /// After `]`: only white space.
    Closed,
}

impl ArrayScanner {
    /// Line ends of the file before the element that was given last.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// Reads the next element into `out`; false at the end of the array, which must be the end of the file.
    /// The opening bracket must have been consumed. `lines` counts the line ends that were passed.
    pub(super) fn next(
        &mut self,
        reader: &mut dyn BufRead,
        out: &mut Vec<u8>,
        lines: &mut u64,
        limit: usize,
    ) -> Result<bool> {
        out.clear();
        loop {
            let Some(byte) = peek(reader)? else {
                return if self.state == State::Closed {
                    Ok(false)
                } else {
                    Err(bad("the JSON array is cut short"))
                };
            };
            match (self.state, byte) {
                (_, b' ' | b'\t' | b'\r' | b'\n') => {
                    *lines += u64::from(byte == b'\n');
                    reader.consume(1);
                }
                (State::Closed, _) => return Err(bad("something follows the JSON array")),
                (State::First | State::Comma, b']') => {
                    reader.consume(1);
                    self.state = State::Closed;
                }
                (State::Comma, b',') => {
                    reader.consume(1);
                    self.state = State::Element;
                }
                (State::Comma, _) => return Err(bad("expected , or ] between elements of the JSON array")),
                (State::First | State::Element, b',' | b']') => {
                    return Err(bad("expected an element in the JSON array"));
                }
                (State::First | State::Element, _) => {
                    self.line = *lines;
                    element(reader, out, limit)?;
                    *lines += out.iter().filter(|&&b| b == b'\n').count() as u64;
                    self.state = State::Comma;
                    return Ok(true);
                }
            }
        }
    }
}

/// Copies one value: up to its closing bracket, or for a plain value up to what cannot belong to it.
fn element(reader: &mut dyn BufRead, out: &mut Vec<u8>, limit: usize) -> Result<()> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Err(bad("the JSON array is cut short"));
        }
        let mut end = None;
        for (i, &byte) in buffer.iter().enumerate() {
            if in_string {
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' => escaped = true,
                    b'"' => in_string = false,
                    _ => {}
                }
                if !in_string && depth == 0 {
                    end = Some(i + 1);
                    break;
                }
                continue;
            }
            match byte {
                b'"' => in_string = true,
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    if depth == 0 {
                        end = Some(i + 1);
                        break;
                    }
                }
                b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t' if depth == 0 => {
                    end = Some(i);
                    break;
                }
                _ => {}
            }
        }
        let used = end.unwrap_or(buffer.len());
        if out.len() + used > limit {
            let reason = Reason::TooLong("a record is longer than the limit".into());
            return Err(Error::new(ErrorKind::InvalidData, reason));
        }
        out.extend_from_slice(&buffer[..used]);
        reader.consume(used);
        if end.is_some() {
            return Ok(());
        }
    }
}

pub(super) fn peek(reader: &mut dyn BufRead) -> Result<Option<u8>> {
    Ok(reader.fill_buf()?.first().copied())
}

fn bad(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidData, reason)
}
