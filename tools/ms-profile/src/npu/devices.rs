//! Devices: versions, memory, operators against their formulas, collectives.

use super::findings::{Findings, Status};
use crate::cli::NpuDoctor;
use ascend_rs::check::{self, Size};
use ascend_rs::{Array, Comm, Device, Error, Event, Stream, Toolkit, Unbound};
use ms_core::DType;
use ms_dist::ReduceOp;

/// Shapes of the operators' checks: odd, so that no block divides them.
const SIZE: Size = Size { rows: 5, columns: 33 };

/// Codes after which a device answers nothing any more.
fn is_lost(e: &Error) -> bool {
    e.code().is_some_and(|c| (507_000..508_000).contains(&c))
}

/// Examines the devices of an initialised toolkit.
pub(crate) fn examine(toolkit: Toolkit, args: &NpuDoctor, findings: &mut Findings) {
    let versions = toolkit.versions();
    let (a, b, c) = versions.runtime;
    let package = if versions.package.is_empty() { "unknown" } else { &versions.package };
    findings.ok("runtime", "version", &format!("CANN {package}, runtime {a}.{b}.{c}"));
    let count = match toolkit.device_count() {
        Ok(0) => {
            let hint = "are the driver and the device nodes (/dev/davinci*) there, and ASCEND_RT_VISIBLE_DEVICES right?";
            findings.add("runtime", "devices", Status::Failed, "this process sees none", hint);
            return;
        }
        Ok(n) => n as i32,
        Err(e) => return findings.failed("runtime", "devices", &e),
    };
    findings.ok("runtime", "devices", &count.to_string());
    let devices = if args.devices.is_empty() { (0..count).collect() } else { args.devices.clone() };
    let mut good = Vec::new();
    for id in devices {
        let name = format!("device {id}");
        // Operators once: all devices of a machine are of one kind.
        match device(&toolkit, id, good.is_empty(), findings) {
            Ok(()) => good.push(id),
            Err(e) => findings.failed("devices", &name, &e),
        }
    }
    if args.no_collectives {
        findings.add("collectives", "all-reduce", Status::Skipped, "not tried, as asked", "");
    } else if good.is_empty() {
        findings.add("collectives", "all-reduce", Status::Skipped, "no device works", "");
    } else {
        match ping(&toolkit, &good) {
            Ok(text) => findings.ok("collectives", "all-reduce", &text),
            Err(e) => findings.failed("collectives", "all-reduce", &e),
        }
    }
    match toolkit.finalise() {
        Ok(()) => findings.ok("runtime", "finalise", "nothing is left"),
        Err(e) => findings.failed("runtime", "finalise", &e),
    }
}

fn device(toolkit: &Toolkit, id: i32, with_operators: bool, findings: &mut Findings) -> Result<(), Error> {
    let device = Device::bind(toolkit, id)?;
    let memory = device.memory()?;
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    let soc = device.soc_name();
    let text = format!(
        "{}, {:.1} GiB free of {:.1} GiB",
        if soc.is_empty() { "unknown chip" } else { &soc },
        gib(memory.free_bytes),
        gib(memory.total_bytes)
    );
    let stream = Stream::new(&device)?;
    copies(&stream)?;
    findings.ok("devices", &format!("device {id}"), &text);
    if with_operators { operators(&stream, findings) } else { Ok(()) }
}

/// A megabyte to the device and back.
fn copies(stream: &Stream) -> Result<(), Error> {
    let values: Vec<f32> = (0..1 << 18).map(|i| i as f32).collect();
    let there = Array::of(stream, &[values.len()], &values)?;
    if there.to_vec::<f32>()? == values {
        return Ok(());
    }
    Err(Error::Rendezvous("a megabyte copied to the device and back has other bytes".to_owned()))
}

/// Every operator that training would use, once for each element type.
fn operators(stream: &Stream, findings: &mut Findings) -> Result<(), Error> {
    let toolkit = stream.device().toolkit().clone();
    let mut lost: Option<Error> = None;
    for check in check::all() {
        let short: Vec<&str> = check.operators.iter().map(|n| n.trim_start_matches("aclnn")).collect();
        let name = short.join(", ");
        if lost.is_some() {
            findings.add("operators", &name, Status::Skipped, "the device failed before", "");
            continue;
        }
        if let Some(symbol) = check.missing(&toolkit) {
            let found = format!("{symbol} is in none of the operator libraries");
            let hint =
                "this release lacks it: training works without what it is for, or needs a newer release";
            findings.add("operators", &name, Status::Note, &found, hint);
            continue;
        }
        let (mut worst, mut said, mut types) = (0.0f64, String::new(), Vec::new());
        let mut failed = None;
        for dtype in check.dtypes {
            match check.run(stream, *dtype, SIZE) {
                Ok(outcome) if outcome.error <= worst => {}
                Ok(outcome) => (worst, said) = (outcome.error, outcome.worst),
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
            types.push(dtype.name());
        }
        match failed {
            Some(e) => {
                findings.failed("operators", &name, &e);
                if is_lost(&e) {
                    lost = Some(e);
                }
            }
            None if worst <= 1.0 => {
                let text = format!("{}: {:.0} % of the tolerance at most", types.join(" "), worst * 100.0);
                findings.ok("operators", &name, &text);
            }
            None => {
                let hint = "attach this report to an issue: the operator or our reading of it is wrong";
                findings.add("operators", &name, Status::Failed, &said, hint);
            }
        }
    }
    lost.map_or(Ok(()), Err)
}

/// One all-reduce over all devices, each with a thread of its own; how long it took.
fn ping(toolkit: &Toolkit, devices: &[i32]) -> Result<String, Error> {
    let comms = {
        let device = Device::bind(toolkit, devices[0])?;
        Comm::all_in_process(&device, devices)?
    };
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = comms.into_iter().map(|c| scope.spawn(|| one_rank(toolkit, c))).collect();
        threads
            .into_iter()
            .map(|t| {
                t.join().unwrap_or_else(|_| Err(Error::Rendezvous("a rank's thread panicked".to_owned())))
            })
            .collect::<Result<Vec<f32>, Error>>()
    })?;
    let slowest = times.iter().copied().fold(0.0, f32::max);
    Ok(format!("{} devices, {slowest:.3} ms for 4 KiB", devices.len()))
}

fn one_rank(toolkit: &Toolkit, comm: Unbound) -> Result<f32, Error> {
    let device = Device::bind(toolkit, comm.device())?;
    let stream = Stream::new(&device)?;
    let comm = comm.bind(&device)?;
    let values = vec![comm.rank() as f32 + 1.0; 1024];
    let a = Array::of(&stream, &[1024], &values)?;
    let (start, end) = (Event::new(&device)?, Event::new(&device)?);
    start.record(&stream)?;
    comm.all_reduce(&stream, a.buffer(), a.buffer(), 1024, DType::F32, ReduceOp::Sum)?;
    end.record(&stream)?;
    end.synchronise()?;
    let want = (comm.size() * (comm.size() + 1) / 2) as f32;
    match a.to_vec::<f32>()?.into_iter().find(|v| *v != want) {
        None => start.elapsed_ms(&end),
        Some(found) => Err(Error::Rendezvous(format!(
            "the sum over {} devices is {found}, expected {want}",
            comm.size()
        ))),
    }
}
