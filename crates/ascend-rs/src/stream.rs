//! Streams and events.

use crate::device::Context;
use crate::memory::Block;
use crate::toolkit::acl;
use crate::{Device, Result};
use hccl_sys::types::{aclrtEvent, aclrtStream};
use std::cell::RefCell;
use std::ptr::null_mut;
use std::rc::Rc;

/// `ACL_EVENT_TIME_LINE`: the event has a time stamp.
const TIME_LINE: u32 = 8;

/// A queue of work. Calls enter it and return; errors of the device appear at [`Stream::synchronise`].
#[derive(Clone, Debug)]
pub struct Stream(pub(crate) Rc<StreamInner>);

#[derive(Debug)]
pub(crate) struct StreamInner {
    pub(crate) context: Rc<Context>,
    pub(crate) raw: aclrtStream,
    pub(crate) id: u64,
    /// The workspace arena: one block that grows, used by one operator after the other in the stream's order.
    pub(crate) workspace: RefCell<Option<Block>>,
}

impl Stream {
    /// A stream with the flags that are recommended for operators: fast launch, fast synchronisation.
    ///
    /// # Errors
    /// If the runtime has no stream left.
    pub fn new(device: &Device) -> Result<Stream> {
        let mut raw = null_mut();
        acl!(device.toolkit(), rt.aclrtCreateStreamWithConfig(&raw mut raw, 0, 3))?;
        let (context, id) = (device.0.clone(), device.0.next_stream());
        Ok(Stream(Rc::new(StreamInner { context, raw, id, workspace: RefCell::new(None) })))
    }

    /// The device it works on.
    pub fn device(&self) -> Device {
        Device(self.0.context.clone())
    }

    /// The handle, for calls through the raw tables; it lives as long as this value.
    pub fn raw(&self) -> aclrtStream {
        self.0.raw
    }

    /// Waits until all that was entered is done.
    ///
    /// # Errors
    /// What a task ended with.
    pub fn synchronise(&self) -> Result<()> {
        acl!(&self.0.context.toolkit, rt.aclrtSynchronizeStream(self.0.raw))
    }

    /// Lets what is entered from now on wait for an event; the host does not wait.
    ///
    /// # Errors
    /// If the runtime refuses.
    pub fn wait(&self, event: &Event) -> Result<()> {
        acl!(&self.0.context.toolkit, rt.aclrtStreamWaitEvent(self.0.raw, event.raw))
    }

    /// Orders what is entered from now on after all that `other` has been given.
    ///
    /// # Errors
    /// If the runtime refuses.
    pub fn wait_for(&self, other: &Stream) -> Result<()> {
        let event = Event::new(&self.device())?;
        event.record(other)?;
        self.wait(&event)
    }

    /// Bytes of the workspace arena.
    pub fn workspace_bytes(&self) -> usize {
        self.0.workspace.borrow().as_ref().map_or(0, |b| b.bytes)
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        let toolkit = &self.context.toolkit;
        // A stream must be done before it ends; what its tasks ended with was for a synchronisation to report.
        let _ = acl!(toolkit, rt.aclrtSynchronizeStream(self.raw));
        if let Some(block) = self.workspace.get_mut().take() {
            self.context.pool.borrow_mut().put_idle(block);
        }
        let _ = acl!(toolkit, rt.aclrtDestroyStream(self.raw));
    }
}

/// A mark in a stream: complete when all that was entered before it is done. Has a time stamp.
#[derive(Debug)]
pub struct Event {
    context: Rc<Context>,
    raw: aclrtEvent,
}

impl Event {
    /// An event of the kind that is not limited in number and can be recorded again.
    ///
    /// # Errors
    /// If the runtime refuses.
    pub fn new(device: &Device) -> Result<Event> {
        let flag = TIME_LINE;
        let mut raw = null_mut();
        acl!(device.toolkit(), rt.aclrtCreateEventExWithFlag(&raw mut raw, flag))?;
        Ok(Event { context: device.0.clone(), raw })
    }

    /// Marks the place that `stream` has come to.
    ///
    /// # Errors
    /// If the runtime refuses.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        acl!(&self.context.toolkit, rt.aclrtRecordEvent(self.raw, stream.0.raw))
    }

    /// Whether the stream has passed it.
    ///
    /// # Errors
    /// If the runtime refuses.
    pub fn is_complete(&self) -> Result<bool> {
        let mut status = 0i32;
        acl!(&self.context.toolkit, rt.aclrtQueryEventStatus(self.raw, (&raw mut status).cast()))?;
        Ok(status == 1)
    }

    /// Lets the host wait until the stream has passed it.
    ///
    /// # Errors
    /// What a task ended with.
    pub fn synchronise(&self) -> Result<()> {
        acl!(&self.context.toolkit, rt.aclrtSynchronizeEvent(self.raw))
    }

    /// Milliseconds from this event to a later one; both must be complete.
    ///
    /// # Errors
    /// 107006 if one is not, 107007 if `until` is the earlier one.
    pub fn elapsed_ms(&self, until: &Event) -> Result<f32> {
        let mut ms = 0.0;
        acl!(&self.context.toolkit, rt.aclrtEventElapsedTime(&raw mut ms, self.raw, until.raw))?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // A stream that still has to pass it keeps what it needs; an error here would only repeat an earlier one.
        let _ = acl!(&self.context.toolkit, rt.aclrtDestroyEvent(self.raw));
    }
}
