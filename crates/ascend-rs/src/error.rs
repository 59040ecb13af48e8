//! Errors, with the toolkit's code, its own message, the function and the shapes.

use std::fmt;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No toolkit was found.
    #[error(transparent)]
    Load(#[from] hccl_sys::LoadError),
    /// The toolkit lacks a function.
    #[error(
        "{symbol} is in none of the toolkit's libraries\nhint: it is older than this function; ms-profile npu-doctor lists what it has"
    )]
    Missing {
        /// The symbol.
        symbol: &'static str,
    },
    /// A function answered a code other than 0.
    #[error(transparent)]
    Call(Box<CallError>),
    /// A view, copy or count does not fit its buffer.
    #[error("{what}: {need} bytes needed, the buffer has {have}")]
    Range {
        /// What was to be done.
        what: &'static str,
        /// Requested bytes.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// The thread already works on a device.
    #[error("device {wanted} cannot be bound to this thread, which is bound to device {bound}")]
    Bound {
        /// The requested device.
        wanted: i32,
        /// The device of this thread.
        bound: i32,
    },
    /// Something that must be the last user is not.
    #[error("{what} is still in use by {users} others")]
    InUse {
        /// What was to end.
        what: &'static str,
        /// How many hold it.
        users: usize,
    },
    /// A mode of attention without the mask that it is about.
    #[error(
        "{symbol}: sparse mode {mode} needs its mask, none was given: the operator would attend to everything"
    )]
    Mask {
        /// The operator.
        symbol: &'static str,
        /// The mode.
        mode: i64,
    },
    /// An element type that a function does not take.
    #[error("{what} does not take elements of type {dtype}")]
    DType {
        /// The function.
        what: &'static str,
        /// The type.
        dtype: ms_core::DType,
    },
    /// Ranks could not exchange what they need to find each other.
    #[error("rendezvous: {0}")]
    Rendezvous(String),
    /// The operating system refused something.
    #[error("{what}: {error}")]
    Io {
        /// What was to be done.
        what: String,
        /// Its answer.
        error: std::io::Error,
    },
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<CallError> for Error {
    fn from(e: CallError) -> Error {
        Error::Call(Box::new(e))
    }
}

impl Error {
    /// The toolkit's code, where a call failed.
    pub fn code(&self) -> Option<i32> {
        match self {
            Error::Call(e) => Some(e.code),
            _ => None,
        }
    }
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The C function.
    pub function: &'static str,
    /// Its answer.
    pub code: i32,
    /// The library's own text for this thread; empty where it has none.
    pub message: String,
    /// Names, element types and shapes of the operands, where the function has tensors.
    pub operands: String,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answered {}", self.function, self.code)?;
        let meaning = meaning(self.function, self.code);
        if !meaning.is_empty() {
            write!(f, " ({meaning})")?;
        }
        if !self.operands.is_empty() {
            write!(f, " for {}", self.operands)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message.trim())?;
        }
        match hint(self.function, self.code) {
            "" => Ok(()),
            hint => write!(f, "\nhint: {hint}"),
        }
    }
}
impl std::error::Error for CallError {}

/// What a code means: collectives number theirs from 0, all other libraries share one table.
pub fn meaning(function: &str, code: i32) -> &'static str {
    if function.starts_with("Hccl") {
        return match code {
            1 => "parameter",
            2 => "null pointer",
            3 => "memory",
            4 => "internal",
            5 => "not supported",
            6 => "not found",
            7 => "unavailable",
            8 => "system call",
            9 => "timeout",
            10 => "open file",
            11 | 12 => "connect",
            13 | 14 => "transfer",
            15 => "runtime",
            16 => "driver",
            19 => "network",
            20 => "again",
            21 => "remote",
            22 => "suspended",
            24 => "out of memory",
            _ => "",
        };
    }
    match code {
        100_000 | 107_000 => "invalid parameter",
        100_001 => "not initialised",
        100_039 => "linked against the stub library",
        107_001 => "no such device",
        107_002 => "no device on this thread",
        107_003 => "stream of another context",
        107_006 => "event without a time stamp",
        107_007 => "events in the wrong order",
        107_017 => "invalid handle",
        107_019 => "wait timed out",
        107_020 => "task timed out",
        107_022 => "device task aborted",
        161_001 => "null pointer",
        161_002 => "shape, element type or layout not accepted",
        200_000 | 207_001 | 207_018 => "out of memory",
        200_001 | 207_000 => "not supported",
        207_004 => "no device",
        207_007 => "out of events",
        207_008 => "out of streams",
        361_001 => "a call of the runtime failed",
        507_008 => "chip version",
        507_010 => "heartbeat of the device lost",
        507_014 => "AI core timed out",
        507_015 => "AI core exception",
        507_033 => "device set-up",
        507_046 => "stream synchronisation timed out",
        507_053 | 507_054 => "device memory fault",
        507_899 => "driver",
        561_000 => "internal",
        561_001 => "shape inference",
        561_002 => "tiling",
        561_003 => "kernel not found",
        561_107 => "ASCEND_OPP_PATH missing",
        561_112 => "no kernels for this chip",
        _ => "",
    }
}

fn hint(function: &str, code: i32) -> &'static str {
    match (function.starts_with("Hccl"), code) {
        (false, 100_039) => {
            "the stub libraries of the toolkit cannot run; take lib64, not lib64/stub or devlib"
        }
        (false, 507_008 | 507_033) => "is the device's node and driver mounted in this container, and free?",
        (false, 507_010) => "npu-smi info shows whether the device is healthy",
        (false, 561_107) => "source the toolkit's set_env.sh, or set ASCEND_OPP_PATH",
        (false, 561_003 | 561_112) => "is the package of kernels for this chip installed?",
        (false, 107_020) => "another rank failed or never came; its first error counts",
        (true, 9) => "another rank never came; HCCL_CONNECT_TIMEOUT and HCCL_SOCKET_IFNAME may help",
        (true, 3 | 24) => "each communicator takes two buffers of HCCL_BUFFSIZE MB; make them smaller",
        _ => "",
    }
}
