//! Available memory and disk space of the machine.

use std::path::Path;

/// Bytes of memory that this process can still take: the smallest of what the system reports as available, what its control
/// group (cgroup) allows, and the limit on its address space (`ulimit -v`). `None` if none of them is known.
pub fn available_memory() -> Option<u64> {
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo(&text));
    let group = control_group();
    [system, group, address_space()].into_iter().flatten().min()
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

/// What the limits of this process's control group and of those around it leave, version 2 or 1.
fn control_group() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(room_of).min()
}

/// Room in the group that a line of `/proc/self/cgroup` names, and in those around it.
fn room_of(line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, name) = (parts.next()?, parts.next()?, parts.next()?);
    let (root, limit, used) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
        c if c.split(',').any(|c| c == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        }
        _ => return None,
    };
    let root = Path::new(root);
    let mut folder = root.join(name.trim_start_matches('/'));
    let mut least = None;
    while folder.starts_with(root) {
        let number = |file: &str| -> Option<u64> {
            std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
        };
        // A group without a limit says `max`, or a number close to 2^63.
        if let Some(limit) = number(limit).filter(|&n| n < 1 << 60) {
            // What the group holds of files can be taken back: it counts as room.
            let cached = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            let field =
                |key: &str| cached.lines().find_map(|l| l.strip_prefix(key)?.trim().parse::<u64>().ok());
            let files = field("inactive_file ").unwrap_or(0);
            let room = limit.saturating_sub(number(used).unwrap_or(0).saturating_sub(files));
            least = Some(least.map_or(room, |l: u64| l.min(room)));
        }
        folder.pop();
    }
    least
}

/// What the limit on the address space leaves.
fn address_space() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let used: u64 = used.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(limit.saturating_sub(used * 1024))
}

/// Bytes that can still be written to the file system of `path`; `None` if the system does not say.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let here = std::path::absolute(path).ok()?;
    let existing = here.ancestors().find(|folder| folder.exists())?;
    let stat = rustix::fs::statvfs(existing).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// The error of a program that needs more memory than there is: needed, available, and what to lower.
pub fn too_little_memory(needed: u64, available: u64, lower: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "memory: this run needs about {}, {} are available\nhint: lower {lower}",
        say_bytes(needed),
        say_bytes(available)
    )
}

/// Bytes in human-readable form: `1.5 GB`.
pub fn say_bytes(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_own_words_are_understood() {
        assert_eq!(meminfo("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(meminfo("MemTotal: 9 kB\n"), None);
        assert_eq!(room_of("3:cpu:/x"), None);
    }

    #[test]
    fn room_on_the_disk_is_found_for_what_is_not_there_yet() {
        let dir = tempfile::tempdir().unwrap();
        let here = free_bytes(dir.path());
        assert_eq!(here.is_some(), free_bytes(&dir.path().join("a/b/c")).is_some());
    }

    #[test]
    fn bytes_are_said_in_three_digits() {
        let said: Vec<String> = [0, 999, 1500, 123_456_789, 2_000_000_000_000].map(say_bytes).into();
        assert_eq!(said, ["0 B", "999 B", "1.5 kB", "123 MB", "2.0 TB"]);
    }
}
