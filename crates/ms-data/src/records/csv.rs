//! Rows of comma- or tab-separated files.
//!
//! RFC 4180 as most programs write it: a quoted field may hold separators, line ends and doubled quotes; a quote inside an
//! unquoted field is an ordinary character. Rows end with `\n`, `\r\n` or `\r`; blank ones are skipped, also those of
//! spaces and tabs.

use crate::Reason;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::io::{BufRead, Error, ErrorKind, Result};

/// Names of the columns, and how cells are separated.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    names: Vec<String>,
    separator: u8,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// At the start of a cell.
    Start,
    /// In a cell without quotes.
    Plain,
    /// Between quotes.
    Quoted,
    /// After a quote between quotes: a second one, or the end of the cell.
    Quote,
}

impl State {
    /// The state after `byte`, which does not end a row.
    fn after(self, byte: u8, separator: u8) -> Self {
        match (self, byte) {
            (Self::Quoted, b'"') => Self::Quote,
            (Self::Quoted, _) | (Self::Quote | Self::Start, b'"') => Self::Quoted,
            (_, b) if b == separator => Self::Start,
            _ => Self::Plain,
        }
    }
}

/// Reads the bytes of the next row that is not blank, without its end, into `out`; false at the end of the file.
/// `line` counts the line ends that were passed.
pub(super) fn next_row(
    reader: &mut dyn BufRead,
    separator: u8,
    out: &mut Vec<u8>,
    line: &mut u64,
    limit: usize,
) -> Result<bool> {
    loop {
        out.clear();
        let mut state = State::Start;
        let ended = loop {
            let buffer = reader.fill_buf()?;
            if buffer.is_empty() {
                break false;
            }
            let mut end = None;
            for (i, &byte) in buffer.iter().enumerate() {
                if matches!(byte, b'\n' | b'\r') && state != State::Quoted {
                    end = Some(i);
                    break;
                }
                *line += u64::from(byte == b'\n');
                state = state.after(byte, separator);
            }
            let used = end.unwrap_or(buffer.len());
            if out.len() + used > limit {
                let said = "a row is longer than the limit; perhaps a quote is never closed";
                return Err(Error::new(ErrorKind::InvalidData, Reason::TooLong(said.into())));
            }
            out.extend_from_slice(&buffer[..used]);
            if end.is_none() {
                reader.consume(used);
                continue;
            }
            let carriage_return = buffer[used] == b'\r';
            reader.consume(used + 1);
            if carriage_return && reader.fill_buf()?.first() == Some(&b'\n') {
                reader.consume(1);
            }
            *line += 1;
            break true;
        };
        if state == State::Quoted {
            return Err(bad("the file ends inside quotes"));
        }
        if out.iter().any(|&byte| byte == separator || !matches!(byte, b' ' | b'\t')) {
            return Ok(true);
        }
        if !ended {
            return Ok(false);
        }
    }
}

impl Header {
    pub(super) fn parse(row: &[u8], separator: u8) -> std::result::Result<Self, String> {
        let (mut names, mut seen) = (Vec::new(), HashSet::new());
        for cell in cells(row, separator)? {
            let name = cell.trim().to_owned();
            if !seen.insert(name.clone()) {
                return Err(format!("two columns are called {name:?}"));
            }
            names.push(name);
        }
        Ok(Self { names, separator })
    }

    /// A row as an object; an empty or absent cell is null.
    pub(super) fn object(&self, row: &[u8]) -> std::result::Result<Map<String, Value>, String> {
        let cells = cells(row, self.separator)?;
        if cells.len() > self.names.len() {
            return Err(format!("expected {} cells, found {}", self.names.len(), cells.len()));
        }
        let mut cells = cells.into_iter();
        Ok(self
            .names
            .iter()
            .map(|name| {
                let cell = cells.next().filter(|cell| !cell.is_empty());
                (name.clone(), cell.map_or(Value::Null, Value::String))
            })
            .collect())
    }
}

fn cells(row: &[u8], separator: u8) -> std::result::Result<Vec<String>, String> {
    let mut out = Vec::new();
    let mut cell = Vec::new();
    let mut state = State::Start;
    let mut finish = |cell: &mut Vec<u8>| {
        let text = String::from_utf8(std::mem::take(cell)).map_err(|e| format!("not UTF-8: {e}"))?;
        out.push(text);
        Ok::<(), String>(())
    };
    for &byte in row {
        let next = state.after(byte, separator);
        match (state, next) {
            (State::Start | State::Plain | State::Quote, State::Start) => finish(&mut cell)?,
            // The quote that opens a cell, and the first of two or the last one.
            (State::Start, State::Quoted) | (_, State::Quote) => {}
            _ => cell.push(byte),
        }
        state = next;
    }
    finish(&mut cell)?;
    Ok(out)
}

fn bad(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidData, reason)
}
