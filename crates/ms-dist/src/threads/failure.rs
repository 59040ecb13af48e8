//! How ranks fail and how the others learn of it.

/// How a rank failed.
#[derive(Debug)]
pub enum RankFailure<E> {
    /// It returned an error.
    Error(E),
    /// It panicked, with this message.
    Panic(String),
    /// The system started no thread for it.
    Unstarted(std::io::Error),
}

impl<E: std::fmt::Display> std::fmt::Display for RankFailure<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Error(e) => e.fmt(f),
            Self::Panic(message) => write!(f, "panic: {message}"),
            Self::Unstarted(e) => write!(f, "the system started no thread for it: {e}"),
        }
    }
}

/// The message of a panic.
pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
