//! A device, bound to the thread that holds it.

use crate::memory::Pool;
use crate::toolkit::acl;
use crate::{Error, Result, Toolkit};
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::rc::Rc;

/// A device that is current on this thread. Whatever is made from it refers to it and is, like it, not [`Send`]: that
/// `aclrtSetDevice` was called on the thread is known to the compiler.
///
/// ```compile_fail
/// fn elsewhere(device: ascend_rs::Device) {
///     std::thread::spawn(move || device.synchronise());
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Device(pub(crate) Rc<Context>);

/// What all objects of one device on one thread share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) toolkit: Toolkit,
    pub(crate) device: i32,
    pub(crate) pool: RefCell<Pool>,
    streams: Cell<u64>,
}

/// Bytes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes nobody has taken.
    pub free_bytes: usize,
    /// Bytes there are.
    pub total_bytes: usize,
}

impl Device {
    /// Makes device `id` current on this thread, until the last object made from it is gone.
    ///
    /// # Errors
    /// [`Error::Bound`] if this thread has a device already; [`Error::Call`] if there is no such device or it fails.
    pub fn bind(toolkit: &Toolkit, id: i32) -> Result<Device> {
        let mut bound = -1;
        if acl!(toolkit, rt.aclrtGetDevice(&raw mut bound)).is_ok() {
            return Err(Error::Bound { wanted: id, bound });
        }
        acl!(toolkit, rt.aclrtSetDevice(id))?;
        Ok(Device(Rc::new(Context {
            toolkit: toolkit.clone(),
            device: id,
            pool: RefCell::default(),
            streams: Cell::new(0),
        })))
    }

    /// Its number.
    pub fn id(&self) -> i32 {
        self.0.device
    }

    /// The toolkit it belongs to.
    pub fn toolkit(&self) -> &Toolkit {
        &self.0.toolkit
    }

    /// The chip's name, as `Ascend910B3`; empty where the runtime has none.
    pub fn soc_name(&self) -> String {
        let Some(f) = self.toolkit().cann().rt.aclrtGetSocName else { return String::new() };
        // SAFETY: takes nothing; gives a static C string or null.
        let text = unsafe { f() };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: as said.
        unsafe { CStr::from_ptr(text.cast()) }.to_string_lossy().into_owned()
    }

    /// Bytes of the device's high-bandwidth memory.
    ///
    /// # Errors
    /// If the runtime cannot say.
    pub fn memory(&self) -> Result<MemoryInfo> {
        let (mut free_bytes, mut total_bytes) = (0, 0);
        acl!(
            self.toolkit(),
            rt.aclrtGetMemInfo(hccl_sys::consts::ACL_HBM_MEM, &raw mut free_bytes, &raw mut total_bytes)
        )?;
        Ok(MemoryInfo { free_bytes, total_bytes })
    }

    /// Waits for every stream of the device.
    ///
    /// # Errors
    /// What the streams' tasks ended with.
    pub fn synchronise(&self) -> Result<()> {
        acl!(self.toolkit(), rt.aclrtSynchronizeDevice())
    }

    /// Same results on every run: sets the operator library's option for the process and for this thread's context, and
    /// that of the collectives. The three are what the public clients set.
    ///
    /// # Errors
    /// If the runtime refuses the option.
    pub fn set_deterministic(&self, on: bool) -> Result<()> {
        let (toolkit, value) = (self.toolkit(), i64::from(on));
        acl!(toolkit, rt.aclrtSetSysParamOpt(0, value))?;
        acl!(toolkit, rt.aclrtCtxSetSysParamOpt(0, value))?;
        let value = hccl_sys::types::HcclConfigValue { value: i32::from(on) };
        acl!(toolkit, hccl.HcclSetConfig(0, value))
    }

    /// Bytes that freed buffers of this thread keep for the next ones.
    pub fn pooled_bytes(&self) -> usize {
        self.0.pool.borrow().bytes()
    }

    /// Waits for the device and gives what the pool keeps back to it.
    ///
    /// # Errors
    /// What the streams' tasks ended with.
    pub fn trim(&self) -> Result<()> {
        self.synchronise()?;
        self.0.pool.borrow_mut().release(&self.0.toolkit);
        Ok(())
    }
}

impl Context {
    pub(crate) fn next_stream(&self) -> u64 {
        self.streams.set(self.streams.get() + 1);
        self.streams.get()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Streams are gone, so nothing is under way. After a device error these calls fail again; that was reported.
        self.pool.get_mut().release(&self.toolkit);
        let _ = acl!(&self.toolkit, rt.aclrtResetDevice(self.device));
    }
}
