//! Device buffers from a pool, and page-locked host buffers.
//!
//! A buffer remembers the stream that used it last. A use on another stream is ordered after that one by an event, a host
//! read waits for it, and a dropped buffer returns to the pool together with an event: the next owner on the same stream may
//! have it at once, one on another stream when the event is complete. So neither reuse nor an early drop can race with
//! pending work.

use crate::device::Context;
use crate::stream::StreamInner;
use crate::toolkit::acl;
use crate::{Error, Result, Stream, Toolkit};
use hccl_sys::consts;
use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::rc::{Rc, Weak};

/// What the sizes of blocks are rounded to, in bytes, so that buffers of nearly one size can follow each other.
const GRAIN: usize = 512;

/// `ACL_EVENT_CAPTURE_STREAM_PROGRESS`: an event that is asked whether a stream has passed it.
const PROGRESS: u32 = 2;

/// A piece of device memory as the runtime gave it.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) at: *mut c_void,
    pub(crate) bytes: usize,
}

/// The stream that used a block last.
type Last = Option<Weak<StreamInner>>;

#[derive(Debug)]
struct Free {
    block: Block,
    /// The last user, and the position in that stream; `None` if nothing can be pending.
    used: Option<(Weak<StreamInner>, Rc<RawEvent>)>,
}

/// An event without a reference to the context: the context owns the pool.
#[derive(Debug)]
struct RawEvent {
    toolkit: Toolkit,
    raw: *mut c_void,
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // Errors repeat those of the device, which were reported.
        let _ = acl!(&self.toolkit, rt.aclrtDestroyEvent(self.raw));
    }
}

impl RawEvent {
    fn record(toolkit: &Toolkit, stream: &StreamInner) -> Result<RawEvent> {
        let mut raw = null_mut();
        acl!(toolkit, rt.aclrtCreateEventExWithFlag(&raw mut raw, PROGRESS))?;
        let event = RawEvent { toolkit: toolkit.clone(), raw };
        acl!(toolkit, rt.aclrtRecordEvent(raw, stream.raw))?;
        Ok(event)
    }

    fn is_complete(&self) -> bool {
        let mut status = 0i32;
        acl!(&self.toolkit, rt.aclrtQueryEventStatus(self.raw, (&raw mut status).cast())).is_ok()
            && status == 1
    }
}

/// Blocks that nobody owns.
#[derive(Debug, Default)]
pub(crate) struct Pool(Vec<Free>);

impl Pool {
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|f| f.block.bytes).sum()
    }

    /// A block that nothing can be under way on.
    pub(crate) fn put_idle(&mut self, block: Block) {
        self.0.push(Free { block, used: None });
    }

    /// The smallest block of at least `bytes` and at most twice as many that `stream` may have now.
    fn take(&mut self, bytes: usize, stream: &StreamInner) -> Option<Block> {
        let fits = |f: &&Free| f.block.bytes >= bytes && f.block.bytes <= 2 * bytes.max(GRAIN);
        let mut places: Vec<usize> = (0..self.0.len()).filter(|i| fits(&&self.0[*i])).collect();
        places.sort_by_key(|i| self.0[*i].block.bytes);
        let place = places.into_iter().find(|i| match &self.0[*i].used {
            None => true,
            Some((last, event)) => {
                let last = last.upgrade();
                // A stream that has ended was waited for.
                last.as_ref().is_none_or(|s| s.id == stream.id) || event.is_complete()
            }
        })?;
        Some(self.0.swap_remove(place).block)
    }

    /// Frees every block. Nothing may be under way.
    pub(crate) fn release(&mut self, toolkit: &Toolkit) {
        for free in self.0.drain(..) {
            // An error here repeats one that was reported, as after the loss of a device.
            let _ = acl!(toolkit, rt.aclrtFree(free.block.at));
        }
    }
}

impl Context {
    /// A block for `stream`: from the pool, from the device, or from the device after the pool was given back.
    pub(crate) fn take(&self, bytes: usize, stream: &StreamInner) -> Result<Block> {
        let bytes = bytes.max(1).div_ceil(GRAIN) * GRAIN;
        if let Some(block) = self.pool.borrow_mut().take(bytes, stream) {
            return Ok(block);
        }
        let fresh = || -> Result<Block> {
            let mut at = null_mut();
            acl!(&self.toolkit, rt.aclrtMalloc(&raw mut at, bytes, consts::ACL_MEM_MALLOC_HUGE_FIRST))?;
            Ok(Block { at, bytes })
        };
        match fresh() {
            Err(e) if matches!(e.code(), Some(200_000 | 207_001 | 207_018)) => {
                acl!(&self.toolkit, rt.aclrtSynchronizeDevice())?;
                self.pool.borrow_mut().release(&self.toolkit);
                fresh()
            }
            other => other,
        }
    }

    /// Back to the pool, after what `last` has been given.
    pub(crate) fn put(&self, block: Block, last: Option<Rc<StreamInner>>) {
        let used = match last {
            None => None,
            Some(stream) => match RawEvent::record(&self.toolkit, &stream) {
                Ok(event) => Some((Rc::downgrade(&stream), Rc::new(event))),
                // Without an event nobody can know when the block is free: a device that refuses one has failed, and
                // its memory ends with the context.
                Err(_) => return,
            },
        };
        self.pool.borrow_mut().0.push(Free { block, used });
    }
}

/// Orders `stream` after the stream of the last use, if that was another, and makes it the last.
fn order(last: &RefCell<Last>, stream: &Stream) -> Result<()> {
    let before = last.borrow().as_ref().and_then(Weak::upgrade);
    if let Some(other) = before.filter(|s| s.id != stream.0.id) {
        stream.wait_for(&Stream(other))?;
    }
    *last.borrow_mut() = Some(Rc::downgrade(&stream.0));
    Ok(())
}

/// Bytes of device memory, uninitialised when new.
#[derive(Debug)]
pub struct Buffer {
    context: Rc<Context>,
    block: Option<Block>,
    bytes: usize,
    last: RefCell<Last>,
}

impl Buffer {
    /// `bytes` of device memory to be used on `stream` first.
    ///
    /// # Errors
    /// [`Error::Call`] with 207001 when the device has no memory left, after the pool was given back.
    pub fn new(stream: &Stream, bytes: usize) -> Result<Buffer> {
        let context = stream.0.context.clone();
        let block = context.take(bytes, &stream.0)?;
        Ok(Buffer { context, block: Some(block), bytes, last: RefCell::new(Some(Rc::downgrade(&stream.0))) })
    }

    /// A copy of `data`.
    ///
    /// # Errors
    /// As [`Buffer::new`], and what the stream's tasks ended with.
    pub fn from_bytes(stream: &Stream, data: &[u8]) -> Result<Buffer> {
        let buffer = Buffer::new(stream, data.len())?;
        buffer.write(stream, 0, data)?;
        Ok(buffer)
    }

    /// Requested bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The device address. What is enqueued on it through the raw tables must be ordered by [`Buffer::enter`].
    pub fn address(&self) -> *mut c_void {
        self.block.as_ref().map_or(null_mut(), |b| b.at)
    }

    /// Says that `stream` is about to use the buffer: if another stream used it last, `stream` waits for that one.
    ///
    /// # Errors
    /// If the runtime refuses an event.
    pub fn enter(&self, stream: &Stream) -> Result<()> {
        order(&self.last, stream)
    }

    fn check(&self, what: &'static str, at: usize, len: usize) -> Result<()> {
        match at.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::Range { what, need: at.saturating_add(len), have: self.bytes }),
        }
    }

    fn place(&self, at: usize) -> *mut c_void {
        self.address().wrapping_byte_add(at)
    }

    /// Copies `data` to byte `at`, in the order of `stream`. Returns when it is there: `data` is pageable memory.
    ///
    /// # Errors
    /// [`Error::Range`] if it does not fit; what the stream's tasks ended with.
    pub fn write(&self, stream: &Stream, at: usize, data: &[u8]) -> Result<()> {
        self.check("write", at, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        self.enter(stream)?;
        acl!(
            &self.context.toolkit,
            rt.aclrtMemcpyAsync(
                self.place(at),
                data.len(),
                data.as_ptr().cast(),
                data.len(),
                consts::ACL_MEMCPY_HOST_TO_DEVICE,
                stream.0.raw,
            )
        )?;
        // The copy of pageable memory is done when the call returns; that it is, is documented for releases that were read.
        stream.synchronise()
    }

    /// The bytes at `at`, after all that was enqueued on them.
    ///
    /// # Errors
    /// [`Error::Range`] if there are not that many; the error of the stream's tasks.
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<()> {
        self.check("read", at, out.len())?;
        if let Some(stream) = self.last.borrow().as_ref().and_then(Weak::upgrade) {
            Stream(stream).synchronise()?;
        }
        if out.is_empty() {
            return Ok(());
        }
        acl!(
            &self.context.toolkit,
            rt.aclrtMemcpy(
                out.as_mut_ptr().cast(),
                out.len(),
                self.place(at),
                out.len(),
                consts::ACL_MEMCPY_DEVICE_TO_HOST,
            )
        )
    }

    /// Fills the buffer with a byte, in the order of `stream`.
    ///
    /// # Errors
    /// If the runtime refuses.
    pub fn fill(&self, stream: &Stream, byte: u8) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.enter(stream)?;
        let toolkit = &self.context.toolkit;
        acl!(
            toolkit,
            rt.aclrtMemsetAsync(self.address(), self.bytes, i32::from(byte), self.bytes, stream.0.raw)
        )
    }

    /// Copies page-locked host memory here, in the order of `stream`, without waiting.
    ///
    /// # Errors
    /// [`Error::Range`] if it does not fit.
    pub fn upload(&self, stream: &Stream, from: &Pinned) -> Result<()> {
        self.check("upload", 0, from.bytes)?;
        self.enter(stream)?;
        from.enter(stream)?;
        let n = from.bytes;
        let toolkit = &self.context.toolkit;
        acl!(
            toolkit,
            rt.aclrtMemcpyAsync(
                self.address(),
                n,
                from.at,
                n,
                consts::ACL_MEMCPY_HOST_TO_DEVICE,
                stream.0.raw
            )
        )
    }

    /// Copies the first bytes to page-locked host memory, in the order of `stream`, without waiting.
    ///
    /// # Errors
    /// [`Error::Range`] if there are not that many.
    pub fn download(&self, stream: &Stream, to: &mut Pinned) -> Result<()> {
        self.check("download", 0, to.bytes)?;
        self.enter(stream)?;
        to.enter(stream)?;
        let n = to.bytes;
        let toolkit = &self.context.toolkit;
        acl!(
            toolkit,
            rt.aclrtMemcpyAsync(to.at, n, self.address(), n, consts::ACL_MEMCPY_DEVICE_TO_HOST, stream.0.raw)
        )
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let last = self.last.borrow().as_ref().and_then(Weak::upgrade);
        if let Some(block) = self.block.take() {
            self.context.put(block, last);
        }
    }
}

/// Page-locked host memory, which streams read and write without the host waiting. Zeros when new.
#[derive(Debug)]
pub struct Pinned {
    context: Rc<Context>,
    at: *mut c_void,
    bytes: usize,
    /// The stream of the last copy that was enqueued.
    last: RefCell<Last>,
}

impl Pinned {
    /// `bytes` of page-locked memory.
    ///
    /// # Errors
    /// If the system has none left.
    pub fn new(device: &crate::Device, bytes: usize) -> Result<Pinned> {
        let mut at = null_mut();
        acl!(device.toolkit(), rt.aclrtMallocHost(&raw mut at, bytes.max(1)))?;
        // SAFETY: that many bytes were just allocated.
        unsafe { std::ptr::write_bytes(at.cast::<u8>(), 0, bytes.max(1)) };
        Ok(Pinned { context: device.0.clone(), at, bytes, last: RefCell::new(None) })
    }

    fn enter(&self, stream: &Stream) -> Result<()> {
        order(&self.last, stream)
    }

    fn settle(&self) -> Result<()> {
        match self.last.take().and_then(|s| s.upgrade()) {
            Some(stream) => Stream(stream).synchronise(),
            None => Ok(()),
        }
    }

    /// The bytes, after the copies that were enqueued on them.
    ///
    /// # Errors
    /// What the stream's tasks ended with.
    pub fn bytes(&self) -> Result<&[u8]> {
        self.settle()?;
        // SAFETY: allocated with this length and initialised; copies that write it were waited for, and another can only be
        // enqueued by `download`, which wants this value for itself alone and so ends the slice.
        Ok(unsafe { std::slice::from_raw_parts(self.at.cast(), self.bytes) })
    }

    /// The bytes, writable, after the copies that were enqueued on them.
    ///
    /// # Errors
    /// What the stream's tasks ended with.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.settle()?;
        // SAFETY: as above, and nobody else refers to them.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.bytes) })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Both fail only after a failure that was reported.
        let _ = self.settle();
        let _ = acl!(&self.context.toolkit, rt.aclrtFreeHost(self.at));
    }
}
