//! Liveness of another process on this machine, from the system's process table.
//!
//! A killed rank sends nothing, and `mpirun` takes a while to end the others; so every rank watches the others on its
//! machine.

use std::fmt;
use std::io;

/// A process: its machine and process table, its number, and its start time in system ticks, because numbers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) machine: u64,
    pub(crate) number: u64,
    pub(crate) began: u64,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.number)
    }
}

/// State and start time of the process with this number.
///
/// # Errors
/// Those of reading the table; [`std::io::ErrorKind::InvalidData`] for an entry of another form.
fn entry(number: u64) -> io::Result<(char, u64)> {
    let line = std::fs::read(format!("/proc/{number}/stat"))?;
    // After the name, which may contain anything: the state, and nineteen fields later the start time.
    let line = String::from_utf8_lossy(&line);
    let fields = line.rsplit_once(") ").map(|(_, fields)| fields.split_whitespace());
    let found =
        fields.and_then(|mut fields| Some((fields.next()?.chars().next()?, fields.nth(18)?.parse().ok()?)));
    found.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether no process has the number, or the one that had it ended while its entry was read.
fn is_gone(e: &io::Error) -> bool {
    const ESRCH: i32 = 3;
    e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(ESRCH)
}

impl Process {
    /// This process; `None` if the system has no process table.
    pub(crate) fn own() -> Option<Self> {
        let number = u64::from(std::process::id());
        // This start of this machine, and the namespace that numbers are of.
        let machine = [
            std::fs::read("/proc/sys/kernel/random/boot_id").ok()?,
            std::fs::read_link("/proc/self/ns/pid").ok()?.into_os_string().into_encoded_bytes(),
        ];
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let machine = machine.iter().flatten().fold(0xcbf2_9ce4_8422_2325, mix);
        entry(number).ok().map(|(_, began)| Self { machine, number, began })
    }

    /// Whether a process of this machine exists and has not ended. If the table cannot be read at the moment, for example
    /// because too many files are open, it counts as alive.
    pub(crate) fn lives(self) -> bool {
        match entry(self.number) {
            Ok((state, began)) => began == self.began && !matches!(state, 'Z' | 'X'),
            Err(e) => !is_gone(&e),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_lives_until_it_is_killed_and_is_not_taken_for_a_later_one() {
        let own = Process::own().unwrap();
        assert!(own.lives());
        assert!(!Process { began: own.began + 1, ..own }.lives());
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let number = u64::from(child.id());
        let process = Process { number, began: entry(number).unwrap().1, ..own };
        assert!(process.lives());
        child.kill().unwrap();
        // Nobody has collected its exit status, so it is still in the table.
        while process.lives() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!process.lives());
        assert_eq!(process.to_string(), format!("process {number}"));
        assert!(
            !is_gone(&io::Error::from_raw_os_error(24)),
            "too many open files say nothing of another process"
        );
    }
}
