//! HCCL communicators: collectives on device buffers, enqueued on streams.

use crate::device::Context;
use crate::memory::Buffer;
use crate::toolkit::acl;
use crate::{Device, Error, Result, Stream, Toolkit};
use hccl_sys::types::{HcclComm, HcclCommConfig, HcclRootInfo};
use ms_core::DType;
use ms_dist::ReduceOp;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a root's information.
const ROOT_INFO: usize = 4108;
/// HCCL's answer that a call is to be repeated.
const AGAIN: i32 = 20;

/// `HcclDataType` of an element type.
pub fn hccl_type(dtype: DType) -> i32 {
    match dtype {
        DType::I8 => 0,
        DType::I16 => 1,
        DType::I32 => 2,
        DType::F16 => 3,
        DType::F32 => 4,
        DType::I64 => 5,
        DType::U8 | DType::Bool => 7,
        DType::F64 => 10,
        DType::Bf16 => 11,
    }
}

/// What one rank makes and all ranks of a communicator need: opaque bytes, not text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootInfo(Vec<u8>);

impl RootInfo {
    /// Makes one; the ranks connect to the caller's.
    ///
    /// # Errors
    /// If no interface of the host can be used.
    pub fn new(device: &Device) -> Result<RootInfo> {
        let mut info = HcclRootInfo { internal: [0; ROOT_INFO] };
        acl!(device.toolkit(), hccl.HcclGetRootInfo(&raw mut info))?;
        Ok(RootInfo(info.internal.iter().map(|c| *c as u8).collect()))
    }

    /// As it came from another rank.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if these are not 4108 bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<RootInfo> {
        if bytes.len() != ROOT_INFO {
            return Err(Error::Rendezvous(format!(
                "expected a root's information of {ROOT_INFO} bytes, found {}",
                bytes.len()
            )));
        }
        Ok(RootInfo(bytes))
    }

    /// To hand to the other ranks.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Settings of a communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommOptions {
    /// Megabytes of each of the two buffers that a communicator takes from the device; `None` for `HCCL_BUFFSIZE`.
    pub buffer_mb: Option<u32>,
    /// Reductions in a fixed order: the same bits on every run.
    pub deterministic: bool,
}

impl CommOptions {
    fn raw(self) -> HcclCommConfig {
        let mut config = HcclCommConfig::new();
        config.buffer_size = self.buffer_mb.unwrap_or(u32::MAX);
        config.deterministic = if self.deterministic { 1 } else { u32::MAX };
        config
    }
}

/// A group of ranks that one rank is in. Used by the thread that made it, as one communicator must be.
#[derive(Debug)]
pub struct Comm {
    context: Rc<Context>,
    raw: HcclComm,
    rank: usize,
    size: usize,
    name: CString,
}

/// A communicator in transit to the thread of its device.
#[derive(Debug)]
pub struct Unbound {
    toolkit: Toolkit,
    raw: HcclComm,
    device: i32,
}

// SAFETY: a handle that is made by one thread and then used by another, one at a time: the value is moved.
unsafe impl Send for Unbound {}

/// Calls a function of HCCL whose last arguments are a communicator and a stream.
macro_rules! enter {
    ($comm:expr, $stream:expr, hccl.$name:ident($($arg:expr),* $(,)?)) => {
        acl!(&$comm.context.toolkit, hccl.$name($($arg,)* $comm.raw, $stream.raw()))
    };
}

impl Comm {
    /// Joins the ranks that have the same root's information. Returns when all have come.
    ///
    /// # Errors
    /// [`Error::Call`] if a rank does not come within `HCCL_CONNECT_TIMEOUT`, or ranks disagree.
    pub fn from_root_info(
        device: &Device,
        info: &RootInfo,
        size: usize,
        rank: usize,
        options: CommOptions,
    ) -> Result<Comm> {
        let mut root = HcclRootInfo { internal: [0; ROOT_INFO] };
        for (to, from) in root.internal.iter_mut().zip(&info.0) {
            *to = *from as std::ffi::c_char;
        }
        let (config, mut raw) = (options.raw(), null_mut());
        acl!(
            device.toolkit(),
            hccl.HcclCommInitRootInfoConfig(
                size as u32,
                &raw const root,
                rank as u32,
                &raw const config,
                &raw mut raw
            )
        )?;
        Comm::bound(device, raw)
    }

    /// Joins the ranks of a rank table, a JSON file that lists servers, devices and ranks.
    ///
    /// # Errors
    /// [`Error::Call`] if the table cannot be read or a rank does not come.
    pub fn from_rank_table(device: &Device, table: &Path, rank: usize, options: CommOptions) -> Result<Comm> {
        let path = CString::new(table.as_os_str().as_bytes()).map_err(|e| Error::Io {
            what: format!("name the rank table {}", table.display()),
            error: e.into(),
        })?;
        let (mut config, mut raw) = (options.raw(), null_mut());
        acl!(
            device.toolkit(),
            hccl.HcclCommInitClusterInfoConfig(path.as_ptr(), rank as u32, &raw mut config, &raw mut raw)
        )?;
        Comm::bound(device, raw)
    }

    /// One rank for each of `devices`, all in this process; rank `r` is to be bound by the thread of `devices[r]`.
    ///
    /// # Errors
    /// [`Error::Call`] if a device is named twice or does not exist.
    pub fn all_in_process(device: &Device, devices: &[i32]) -> Result<Vec<Unbound>> {
        let (mut list, mut raw) = (devices.to_vec(), vec![null_mut(); devices.len()]);
        let toolkit = device.toolkit();
        acl!(toolkit, hccl.HcclCommInitAll(list.len() as u32, list.as_mut_ptr(), raw.as_mut_ptr()))?;
        let one = |(raw, device)| Unbound { toolkit: toolkit.clone(), raw, device };
        Ok(raw.into_iter().zip(devices.iter().copied()).map(one).collect())
    }

    /// A group of some ranks of this one, which must not be such a group itself. `ranks` ascend and hold this rank; the
    /// members call this with one `id` that no other group has.
    ///
    /// # Errors
    /// [`Error::Call`] if the ranks are not as said, or one does not come.
    pub fn subgroup(&self, ranks: &[usize], id: u64, options: CommOptions) -> Result<Comm> {
        let mut ids: Vec<u32> = ranks.iter().map(|r| *r as u32).collect();
        let place = ranks.iter().position(|r| *r == self.rank).unwrap_or(ranks.len());
        let (mut parent, mut config, mut raw) = (self.raw, options.raw(), null_mut());
        acl!(
            &self.context.toolkit,
            hccl.HcclCreateSubCommConfig(
                &raw mut parent,
                ids.len() as u32,
                ids.as_mut_ptr(),
                id,
                place as u32,
                &raw mut config,
                &raw mut raw,
            )
        )?;
        Comm::bound(&Device(self.context.clone()), raw)
    }

    fn bound(device: &Device, raw: HcclComm) -> Result<Comm> {
        // From here on the handle is destroyed if something fails.
        let mut comm = Comm { context: device.0.clone(), raw, rank: 0, size: 0, name: CString::default() };
        let (mut rank, mut size) = (0, 0);
        acl!(device.toolkit(), hccl.HcclGetRankId(raw, &raw mut rank))?;
        acl!(device.toolkit(), hccl.HcclGetRankSize(raw, &raw mut size))?;
        let mut text = [0u8; 128];
        acl!(device.toolkit(), hccl.HcclGetCommName(raw, text.as_mut_ptr().cast()))?;
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        // No zero comes before the first one.
        comm.name = CString::new(&text[..end]).unwrap_or_default();
        (comm.rank, comm.size) = (rank as usize, size as usize);
        Ok(comm)
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks of the group.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The name by which operators that communicate find the group.
    pub fn name(&self) -> &CStr {
        &self.name
    }

    fn ready(&self, what: &'static str, stream: &Stream, buffers: &[(&Buffer, usize)]) -> Result<()> {
        for (buffer, bytes) in buffers {
            if *bytes > buffer.len() {
                return Err(Error::Range { what, need: *bytes, have: buffer.len() });
            }
            buffer.enter(stream)?;
        }
        Ok(())
    }

    /// `to = Σ` or the largest of all ranks' first `count` elements of `from`; may be one buffer.
    ///
    /// # Errors
    /// [`Error::Range`] if a buffer is too small; [`Error::Call`] for f64 and unsigned elements, which HCCL does not reduce.
    pub fn all_reduce(
        &self,
        stream: &Stream,
        from: &Buffer,
        to: &Buffer,
        count: usize,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        let n = count * dtype.size();
        self.ready("all-reduce", stream, &[(from, n), (to, n)])?;
        let (count, dtype) = (count as u64, hccl_type(dtype));
        enter!(self, stream, hccl.HcclAllReduce(from.address(), to.address(), count, dtype, raw_op(op)))
    }

    /// `to` = all ranks' `count` elements, in rank order.
    ///
    /// # Errors
    /// [`Error::Range`] if a buffer is too small.
    pub fn all_gather(
        &self,
        stream: &Stream,
        from: &Buffer,
        to: &Buffer,
        count: usize,
        dtype: DType,
    ) -> Result<()> {
        let n = count * dtype.size();
        self.ready("all-gather", stream, &[(from, n), (to, n * self.size)])?;
        let (count, dtype) = (count as u64, hccl_type(dtype));
        enter!(self, stream, hccl.HcclAllGather(from.address(), to.address(), count, dtype))
    }

    /// `to` = this rank's part of `count` elements of the sum of all ranks' `from`.
    ///
    /// # Errors
    /// As [`Comm::all_reduce`].
    pub fn reduce_scatter(
        &self,
        stream: &Stream,
        from: &Buffer,
        to: &Buffer,
        count: usize,
        dtype: DType,
    ) -> Result<()> {
        let n = count * dtype.size();
        self.ready("reduce-scatter", stream, &[(from, n * self.size), (to, n)])?;
        let (count, dtype, op) = (count as u64, hccl_type(dtype), raw_op(ReduceOp::Sum));
        enter!(self, stream, hccl.HcclReduceScatter(from.address(), to.address(), count, dtype, op))
    }

    /// `buffer` = that of rank `root`.
    ///
    /// # Errors
    /// [`Error::Range`] if the buffer is too small; [`Error::Call`] if there is no such rank.
    pub fn broadcast(
        &self,
        stream: &Stream,
        buffer: &Buffer,
        count: usize,
        dtype: DType,
        root: usize,
    ) -> Result<()> {
        self.ready("broadcast", stream, &[(buffer, count * dtype.size())])?;
        let (count, dtype) = (count as u64, hccl_type(dtype));
        enter!(self, stream, hccl.HcclBroadcast(buffer.address(), count, dtype, root as u32))
    }

    /// Sends `counts[r]` elements to rank `r` and gets `recv_counts[r]` from it, each side one after the other.
    ///
    /// # Errors
    /// [`Error::Range`] if a buffer is too small or a list has not one count per rank.
    pub fn all_to_all(
        &self,
        stream: &Stream,
        from: &Buffer,
        counts: &[usize],
        to: &Buffer,
        recv_counts: &[usize],
        dtype: DType,
    ) -> Result<()> {
        for list in [counts, recv_counts] {
            if list.len() != self.size {
                return Err(Error::Range { what: "all-to-all counts", need: self.size, have: list.len() });
            }
        }
        let (sends, sends_at, total) = spread(counts);
        let (recvs, recvs_at, total_recv) = spread(recv_counts);
        let w = dtype.size();
        self.ready("all-to-all", stream, &[(from, total * w), (to, total_recv * w)])?;
        let dtype = hccl_type(dtype);
        let raw = |list: &[u64]| list.as_ptr().cast::<c_void>();
        enter!(
            self,
            stream,
            hccl.HcclAlltoAllV(
                from.address(),
                raw(&sends),
                raw(&sends_at),
                dtype,
                to.address(),
                raw(&recvs),
                raw(&recvs_at),
                dtype,
            )
        )
    }

    /// Sends elements to rank `to`; its receive must come in the same order.
    ///
    /// # Errors
    /// [`Error::Range`] if the buffer is too small; [`Error::Call`] if there is no such rank.
    pub fn send(&self, stream: &Stream, from: &Buffer, count: usize, dtype: DType, to: usize) -> Result<()> {
        self.ready("send", stream, &[(from, count * dtype.size())])?;
        let (count, dtype) = (count as u64, hccl_type(dtype));
        enter!(self, stream, hccl.HcclSend(from.address(), count, dtype, to as u32))
    }

    /// Receives elements from rank `from`.
    ///
    /// # Errors
    /// As [`Comm::send`].
    pub fn recv(&self, stream: &Stream, to: &Buffer, count: usize, dtype: DType, from: usize) -> Result<()> {
        self.ready("receive", stream, &[(to, count * dtype.size())])?;
        let (count, dtype) = (count as u64, hccl_type(dtype));
        enter!(self, stream, hccl.HcclRecv(to.address(), count, dtype, from as u32))
    }

    /// Lets the stream wait until every rank's stream has come to it.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        enter!(self, stream, hccl.HcclBarrier())
    }

    /// What went wrong in the background, if anything.
    ///
    /// # Errors
    /// The communicator's asynchronous error.
    pub fn check(&self) -> Result<()> {
        let mut code = 0;
        acl!(&self.context.toolkit, hccl.HcclGetCommAsyncError(self.raw, &raw mut code))?;
        self.context.toolkit.check("HcclGetCommAsyncError", code, String::new)
    }
}

impl Unbound {
    /// The device whose thread is to bind it.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// Makes it a communicator of this thread's device.
    ///
    /// # Errors
    /// [`Error::Bound`] if that is another one.
    pub fn bind(mut self, device: &Device) -> Result<Comm> {
        if device.id() != self.device {
            return Err(Error::Bound { wanted: self.device, bound: device.id() });
        }
        // From here on the communicator destroys the handle.
        let raw = std::mem::replace(&mut self.raw, null_mut());
        Comm::bound(device, raw)
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            destroy(&self.toolkit, self.raw);
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        destroy(&self.context.toolkit, self.raw);
    }
}

/// Destroys a communicator; the library may ask for another try.
fn destroy(toolkit: &Toolkit, raw: HcclComm) {
    for _ in 0..50 {
        match acl!(toolkit, hccl.HcclCommDestroy(raw)) {
            Err(e) if e.code() == Some(AGAIN) => std::thread::sleep(Duration::from_millis(10)),
            // After a failure of the device or a rank it refuses; that was reported.
            _ => return,
        }
    }
}

fn raw_op(op: ReduceOp) -> i32 {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Max => 2,
    }
}

/// Counts, their places one after the other, and the sum.
fn spread(counts: &[usize]) -> (Vec<u64>, Vec<u64>, usize) {
    let mut places = Vec::with_capacity(counts.len());
    let mut at = 0;
    for n in counts {
        places.push(at as u64);
        at += n;
    }
    (counts.iter().map(|n| *n as u64).collect(), places, at)
}
