//! Whether a process of this machine still lives, as the system's table of processes has it.
//!
//! A rank that is killed says nothing, and `mpirun` waits before it ends the others; so every rank keeps an eye on the next one
//! of its machine.

use std::fmt;

/// A process: the machine and the table it is in, its number, and when it began, in the system's ticks: numbers are given out
/// again.
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

/// State and beginning of a process of this number; `None` where there is none, or no such table.
fn entry(number: u64) -> Option<(char, u64)> {
    let line = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // Behind the name, which may hold anything: the state, and nineteen fields further when it began.
    let mut fields = line.rsplit_once(") ")?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.nth(18)?.parse().ok()?))
}

impl Process {
    /// This one; `None` where the system has no table of processes.
    pub(crate) fn own() -> Option<Self> {
        let number = u64::from(std::process::id());
        // This start of this machine, and the namespace that numbers are of.
        let machine = [
            std::fs::read("/proc/sys/kernel/random/boot_id").ok()?,
            std::fs::read_link("/proc/self/ns/pid").ok()?.into_os_string().into_encoded_bytes(),
        ];
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let machine = machine.iter().flatten().fold(0xcbf2_9ce4_8422_2325, mix);
        entry(number).map(|(_, began)| Self { machine, number, began })
    }

    /// Whether a process of this machine is there and has not ended.
    pub(crate) fn lives(self) -> bool {
        entry(self.number).is_some_and(|(state, began)| began == self.began && !matches!(state, 'Z' | 'X'))
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
        // Nobody has asked how it ended, so it is still in the table.
        while process.lives() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!process.lives());
        assert_eq!(process.to_string(), format!("process {number}"));
    }
}
