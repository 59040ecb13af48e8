//! Rules with ids and severities, the texts of errors, the trace of calls, injected faults.

use crate::abi::Arg;
use crate::knobs::{OnViolation, knobs};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::CString;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How sure a rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Documentation or public source says so.
    Documented,
    /// Clients do it this way.
    Practice,
    /// Nobody promises otherwise; a warning.
    Cautious,
}

/// A rule that a program can break.
#[derive(Debug)]
pub struct Rule {
    /// `MEM-01`
    pub id: &'static str,
    /// How sure it is.
    pub severity: Severity,
    /// What must hold.
    pub text: &'static str,
}

macro_rules! rules {
    ($($name:ident = $id:literal, $severity:ident, $text:literal;)*) => {
        $(#[doc = $text] pub static $name: Rule = Rule { id: $id, severity: Severity::$severity, text: $text };)*
        /// Every rule.
        pub static ALL: &[&Rule] = &[$(&$name),*];
    };
}
rules! {
    MEM_HOST_TOUCH = "MEM-01", Documented, "the host must not access a device address";
    MEM_NOT_DEVICE = "MEM-02", Documented, "a device address must lie in one live allocation of the device";
    MEM_FREE_IN_FLIGHT = "MEM-03", Documented, "memory must not be freed while submitted work uses it";
    MEM_BAD_FREE = "MEM-04", Documented, "only the start of a live allocation can be freed";
    MEM_BOUNDS = "MEM-05", Documented, "a copy must fit its destination and both allocations";
    MEM_FREED_USE = "MEM-06", Documented, "memory must live until the work that uses it has been done";
    MEM_ALIGN = "MEM-07", Cautious, "a tensor's device address must be a multiple of 32 (the page says so; the vendor's fused optimizer does not keep to it)";
    STR_CONTEXT = "STR-01", Documented, "a stream or event is used only while its context is current";
    STR_HANDLE = "STR-02", Documented, "a stream, event or context handle must be alive and of the right kind";
    STR_BUSY = "STR-03", Documented, "a stream is synchronised before it is destroyed";
    STR_EVENT_KIND = "STR-04", Documented, "the call does not fit the kind of the event";
    RACE = "RACE-01", Documented, "two conflicting accesses must be ordered by a stream, an event or a synchronisation";
    RACE_THREADS = "RACE-02", Cautious, "two conflicting accesses of threads of the host must be ordered, if by nothing else then by a lock of the program, which a library does not see";
    NN_HANDLE = "NN-01", Documented, "a tensor, scalar, array or executor handle must be alive and of the right kind";
    NN_EXECUTOR_TWICE = "NN-02", Documented, "an executor that is not repeatable runs once";
    NN_EXECUTOR_OTHER = "NN-03", Documented, "the second phase belongs to the operator of the first";
    NN_WORKSPACE = "NN-04", Documented, "the workspace is device memory of at least the size asked for, in one live allocation";
    NN_VIEW = "NN-05", Documented, "a view lies inside its storage, and the storage inside its allocation";
    NN_LEAK = "NN-06", Documented, "every executor reaches its second phase or is destroyed";
    NN_THREAD = "NN-07", Cautious, "both phases run on one thread";
    NN_OVERLAP = "NN-08", Cautious, "an output does not overlap another tensor of the call unless it is the same view";
    NN_COMPLEX = "NN-09", Documented, "an operator takes complex tensors only if its page has a complex element type";
    NN_NO_KERNEL = "NN-10", Cautious, "an operator needs a kernel; the emulator has not all";
    NN_KEPT = "NN-12", Cautious, "tensors, scalars, arrays and lists are destroyed before aclFinalize";
    NN_TYPE = "NN-11", Documented, "an operand has an element type that the operator's page names";
    NN_SHAPE = "NN-13", Documented, "the shapes and places of operands fit together as the operator's page says";
    NN_VALUE = "NN-14", Documented, "numbers, texts and what must be left out are as the operator's page names them";
    NN_CHIP = "NN-15", Documented, "an operator exists on the kinds of chips that its page names";
    NN_PAIR = "NN-16", Documented, "what a dispatch of tokens gives goes unchanged into the combination of the same version";
    API_ABSENT = "API-01", Cautious, "a function needs an implementation; the emulator has not all";
    COMM_MISMATCH = "COMM-01", Documented, "all ranks of a communicator issue the same collectives in the same order";
    COMM_TIMEOUT = "COMM-02", Documented, "all ranks arrive within the time limit";
    COMM_DEADLOCK = "COMM-03", Documented, "sends and receives match without a cycle";
    COMM_ROOT_INFO = "COMM-04", Documented, "the root info reaches every rank unchanged and is used for one world";
    COMM_ARGUMENT = "COMM-05", Documented, "the arguments of a collective are among the documented ones";
    COMM_BUFFER = "COMM-06", Documented, "buffers of a collective are device memory of the communicator's device";
    COMM_NAME = "COMM-07", Documented, "an operator fused with communication is given the name of a communicator of its device";
    COMM_ONE = "COMM-08", Documented, "on A2 the operators fused with communication of a model use one communicator";
    COMM_ROUTE = "COMM-09", Documented, "nothing else uses the communicator by which tokens go to experts";
    RES_LEAK = "RES-01", Documented, "streams, events, memory and communicators are released before aclFinalize";
    PROF_ORDER = "PROF-01", Documented, "init, create config, start, stop, destroy config, finalize, in this order";
}

thread_local! {
    static LAST: Cell<i32> = const { Cell::new(0) };
    static TEXT: RefCell<Option<CString>> = const { RefCell::new(None) };
    static SHOWN: RefCell<Option<CString>> = const { RefCell::new(None) };
}
static CALLS: AtomicU64 = AtomicU64::new(0);
static COUNTS: Mutex<Option<HashMap<String, u64>>> = Mutex::new(None);
static POISON: Mutex<Option<i32>> = Mutex::new(None);

/// Number of calls so far; violations name it, and the trace file numbers its lines by it.
pub fn call_number() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Where a call was made: its number and thread.
#[derive(Clone, Debug)]
pub struct Site {
    what: String,
    call: u64,
    thread: String,
}

impl Site {
    /// The present call, by name.
    pub fn here(what: &str) -> Site {
        let thread = std::thread::current();
        Site {
            what: what.to_owned(),
            call: call_number(),
            thread: thread.name().map_or_else(|| format!("{:?}", thread.id()), str::to_owned),
        }
    }
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (call {}, thread {})", self.what, self.call, self.thread)
    }
}

/// Counts a call and writes it to the trace.
pub fn trace(name: &str, args: &[Arg]) {
    let number = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    if let Some(path) = &knobs().trace {
        let list: Vec<String> = args
            .iter()
            .map(|a| match a {
                Arg::P(p) => format!("{p:#x}"),
                Arg::I(v) => v.to_string(),
                Arg::U(v) => v.to_string(),
                Arg::F(v) => v.to_string(),
                Arg::B(v) => v.to_string(),
            })
            .collect();
        append(path, &format!("{number} {name}({})\n", list.join(", ")));
    }
}

fn append(path: &std::path::Path, line: &str) {
    if let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path) {
        // A report that cannot be written must not change what the program under test sees.
        let _ = file.write_all(line.as_bytes());
    }
}

/// How many lines of each cautious rule were given a back trace.
struct Traced(Mutex<Option<HashMap<&'static str, u32>>>);
static TRACED: Traced = Traced(Mutex::new(None));

impl Traced {
    fn first(&self, id: &'static str) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let count = counts.get_or_insert_default().entry(id).or_insert(0);
        *count += 1;
        *count <= 100
    }
}

/// Escapes for a JSON string.
fn json(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if (c as u32) < 32 => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A line of the report. What may be no mistake comes often: of the lines of such a rule the first ones have a back trace.
fn line(rule: &'static Rule, message: &str, site: &Site) -> String {
    let trace = match rule.severity {
        Severity::Cautious if !TRACED.first(rule.id) => String::new(),
        _ => std::backtrace::Backtrace::force_capture().to_string(),
    };
    format!(
        "{{\"rule\":\"{}\",\"severity\":\"{}\",\"must\":\"{}\",\"message\":\"{}\",\"call\":{},\"thread\":\"{}\",\"trace\":\"{}\"}}\n",
        rule.id,
        format!("{:?}", rule.severity).to_lowercase(),
        json(rule.text),
        json(message),
        site.call,
        json(&site.thread),
        json(&trace)
    )
}

/// A rule was broken: writes the report, then ends the process, or gives back `code` as the call's answer (0 if the
/// program is to go on).
pub fn violation(rule: &'static Rule, code: i32, message: &str) -> i32 {
    let site = Site::here("");
    if let Some(path) = &knobs().report {
        append(path, &line(rule, message, &site));
    }
    if rule.severity == Severity::Cautious {
        // Only a line of the report: nobody promises otherwise.
        return 0;
    }
    let spoken = format!("cann-emu: {} {}: {message}\n", rule.id, rule.text);
    // A violation must be seen even when the program ignores codes.
    let _ = std::io::stderr().write_all(spoken.as_bytes());
    set_text(&format!("{} {}: {message}", rule.id, rule.text));
    match knobs().violation {
        OnViolation::Abort => {
            if std::env::var_os("CANN_EMU_BACKTRACE").is_some() {
                let trace = std::backtrace::Backtrace::force_capture();
                let _ = std::io::stderr().write_all(trace.to_string().as_bytes());
            }
            std::process::abort()
        }
        OnViolation::Error => fail(code, &format!("{} {}: {message}", rule.id, rule.text)),
        OnViolation::Log => 0,
    }
}

/// [`violation`], where the call cannot go on.
///
/// # Errors
/// `code`, whatever becomes of the program.
pub fn broken<T>(rule: &'static Rule, code: i32, message: &str) -> Result<T, i32> {
    violation(rule, code, message);
    Err(code)
}

/// What a code means: success if it is 0.
///
/// # Errors
/// Any other code.
pub fn result(code: i32) -> Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

fn set_text(text: &str) {
    TEXT.with(|t| *t.borrow_mut() = CString::new(text.replace('\0', " ")).ok());
}

/// Records an error of this thread and gives its code back.
pub fn fail(code: i32, text: &str) -> i32 {
    LAST.with(|l| l.set(code));
    set_text(&format!("E{code}: {text}"));
    if std::env::var_os("CANN_EMU_VERBOSE").is_some() {
        let _ = std::io::stderr().write_all(format!("cann-emu: error {code}: {text}\n").as_bytes());
    }
    code
}

/// The last code of this thread; `clear` takes it away.
pub fn last_error(clear: bool) -> i32 {
    LAST.with(|l| if clear { l.replace(0) } else { l.get() })
}

/// The last error's text; a pointer that lives until the next call on this thread, or 0.
pub fn recent_text() -> usize {
    let taken = TEXT.with(|t| t.borrow_mut().take());
    SHOWN.with(|s| {
        *s.borrow_mut() = taken;
        s.borrow().as_ref().map_or(0, |c| c.as_ptr() as usize)
    })
}

/// What a function answers that the emulator does not have.
pub fn unsupported_code(name: &str) -> i32 {
    let code = if name.starts_with("Hccl") { 5 } else { 207_000 };
    fail(code, &format!("{name}: {}: the emulator has no implementation of it", API_ABSENT.id))
}

/// Notes a call of a function that the emulator does not have.
pub fn absent(name: &str) {
    trace(name, &[]);
    if std::env::var_os("CANN_EMU_VERBOSE").is_some() {
        let _ = std::io::stderr().write_all(format!("cann-emu: {name} is not implemented\n").as_bytes());
    }
}

/// Whether an injected fault `kind:argument@site:n` hits the n-th time `site` is passed; gives `argument`.
/// Without `:n` it hits every time.
pub fn fault(kind: &str, site: &str) -> Option<String> {
    injected(kind, site, "")
}

/// Whether a fault of a rank, `kind:rankR@site:n` or `kind@site:n:rankR`, hits the n-th time that the rank passes `site`;
/// without a rank it hits all of them.
pub fn fault_of_rank(kind: &str, site: &str, rank: u32) -> bool {
    injected(kind, site, &format!("rank{rank}")).is_some()
}

/// The argument of the fault of a kind that hits `who` (nobody in particular: empty) at a site.
fn injected(kind: &str, site: &str, who: &str) -> Option<String> {
    let faults = &knobs().faults;
    if faults.is_empty() {
        return None;
    }
    let mut counts = COUNTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let count = counts.get_or_insert_default().entry(format!("{kind}@{site} {who}")).or_insert(0);
    *count += 1;
    faults.iter().find_map(|fault| {
        let (what, place) = fault.split_once('@')?;
        let (name, mut argument) = what.split_once(':').unwrap_or((what, ""));
        if name != kind {
            return None;
        }
        let mut rest = place.strip_prefix(site)?;
        if let Some((before, rank)) = rest.rsplit_once(":rank") {
            argument = &rest[rest.len() - rank.len() - 4..];
            rest = before;
        }
        if !who.is_empty() && !argument.is_empty() && argument != who {
            return None;
        }
        let nth = match rest.strip_prefix(':') {
            None if rest.is_empty() => return Some(argument.to_owned()),
            None => return None,
            Some(n) => n,
        };
        (nth.parse() == Ok(*count)).then(|| argument.to_owned())
    })
}

/// A device error: from now on every call fails with it.
pub fn poison(code: i32) {
    POISON.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(code);
}

/// The device error of this process, if there was one.
pub fn poisoned() -> Option<i32> {
    *POISON.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Writes a finding that ends nothing: to the report file, and aloud when asked to be verbose.
pub fn note(rule: &'static Rule, message: &str) {
    let verbose = std::env::var_os("CANN_EMU_VERBOSE").is_some();
    if knobs().report.is_none() && !verbose {
        return;
    }
    let line = line(rule, message, &Site::here(""));
    if let Some(path) = &knobs().report {
        append(path, &line);
    }
    if verbose {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}
