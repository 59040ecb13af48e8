//! Two machines, as far as MPI can tell: network namespaces with a link between them.

use std::process::{Command, Stdio};

const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
/// Ranks that a machine has room for.
const ROOM: usize = 2;

/// Namespaces, which go away with this, and the program by which the launcher reaches the second from the first.
pub(crate) struct Machines {
    names: [String; 2],
    agent: tempfile::TempPath,
}

impl Machines {
    /// `None` where the machine does not allow them.
    pub(crate) fn new() -> Option<Self> {
        let names = [0, 1].map(|i| format!("ms-mpi-{}-{i}", std::process::id()));
        let agent = agent(&names[1]);
        let this = Self { names, agent };
        this.wired().then_some(this)
    }

    fn wired(&self) -> bool {
        let ip = |line: &str| {
            let done = Command::new("ip").args(line.split_whitespace()).stderr(Stdio::null()).status();
            done.is_ok_and(|status| status.success())
        };
        let [a, b] = &self.names;
        ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!("link add veth netns {a} type veth peer name veth netns {b}"))
            && self.names.iter().zip(ADDRESSES).all(|(name, address)| {
                ip(&format!("-n {name} addr add {address}/24 dev veth"))
                    && ip(&format!("-n {name} link set veth up"))
                    && ip(&format!("-n {name} link set lo up"))
            })
    }

    /// `mpirun` over `ranks` processes, one after the other on either machine, which have nothing but TCP between them.
    pub(crate) fn mpirun(&self, ranks: usize) -> Command {
        let inner = crate::mpirun(ranks);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[0]]).arg(inner.get_program()).args(inner.get_args());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["--host", &ADDRESSES.map(|address| format!("{address}:{ROOM}")).join(",")]);
        command.args(["--map-by", "node", "--mca", "plm_rsh_agent"]).arg(&self.agent);
        command.args(
            "--mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24"
                .split(' '),
        );
        command
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        }
    }
}

/// How the launcher reaches the other machine: it gives the address, then what to run there.
fn agent(there: &str) -> tempfile::TempPath {
    let path = tempfile::Builder::new().suffix(".sh").tempfile().unwrap().into_temp_path();
    std::fs::write(&path, format!("#!/bin/sh\nshift\nexec ip netns exec {there} sh -c \"$*\"\n")).unwrap();
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    path
}
