//! The loaded libraries, initialised.

use crate::{CallError, Error, Result};
use hccl_sys::{Cann, Search};
use std::ffi::CStr;
use std::sync::Arc;

/// CANN, opened and initialised. Cheap to clone; nothing is global.
#[derive(Clone, Debug)]
pub struct Toolkit(Arc<Cann>);

/// What the toolkit says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The package's version text, as `8.1.RC1`; empty where it says nothing.
    pub package: String,
    /// Version of the runtime's interface.
    pub runtime: (i32, i32, i32),
}

/// Calls an entry of a table and turns its code into a result.
macro_rules! acl {
    ($toolkit:expr, $table:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        let toolkit: &$crate::Toolkit = $toolkit;
        match toolkit.cann().$table.$name {
            // SAFETY: the declared types are the published ones; pointers are to live values or handles of this crate, which
            // keep what they stand for alive.
            Some(f) => toolkit.check(stringify!($name), unsafe { f($($arg),*) }, String::new),
            None => Err($crate::Error::Missing { symbol: stringify!($name) }),
        }
    }};
}
pub(crate) use acl;

impl Toolkit {
    /// Opens the libraries and initialises the runtime; a runtime that is initialised already will do.
    ///
    /// # Errors
    /// [`Error::Load`] with every path that was tried; [`Error::Call`] if `aclInit` fails.
    pub fn open(search: &Search) -> Result<Toolkit> {
        let toolkit = Toolkit(Arc::new(Cann::open(search)?));
        match acl!(&toolkit, acl.aclInit(std::ptr::null())) {
            Err(e) if e.code() == Some(100_002) => Ok(toolkit),
            other => other.map(|()| toolkit),
        }
    }

    /// The raw tables.
    pub fn cann(&self) -> &Cann {
        &self.0
    }

    /// Turns a code into a result: the library's message for this thread is read at once.
    ///
    /// # Errors
    /// [`Error::Call`] for any code but 0.
    pub fn check(&self, function: &'static str, code: i32, operands: impl FnOnce() -> String) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let message = match self.0.acl.aclGetRecentErrMsg {
            Some(f) => {
                // SAFETY: takes nothing; gives a C string of this thread, or null.
                let text = unsafe { f() };
                // SAFETY: as said; it is copied before the next call.
                (!text.is_null())
                    .then(|| unsafe { CStr::from_ptr(text.cast()) }.to_string_lossy().into_owned())
            }
            None => None,
        };
        Err(CallError { function, code, message: message.unwrap_or_default(), operands: operands() }.into())
    }

    /// How many devices this process sees.
    ///
    /// # Errors
    /// If the runtime cannot say.
    pub fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        acl!(self, rt.aclrtGetDeviceCount(&raw mut count))?;
        Ok(count)
    }

    /// Versions, for a log; what cannot be found is empty.
    pub fn versions(&self) -> Versions {
        let mut runtime = (0, 0, 0);
        // Versions are reported, never required.
        let _ = acl!(self, rt.aclrtGetVersion(&raw mut runtime.0, &raw mut runtime.1, &raw mut runtime.2));
        let mut found = hccl_sys::types::aclCANNPackageVersion { version: [0; 128], parts: [0; 384] };
        let package = match acl!(self, acl.aclsysGetCANNVersion(0, &raw mut found)) {
            Ok(()) => found.version.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect(),
            Err(_) => String::new(),
        };
        Versions { package, runtime }
    }

    /// Ends the runtime. The last thing a program does before it leaves: static destructors of the operator libraries have
    /// been seen to crash, so call [`std::process::exit`] next. Libraries are never unloaded.
    ///
    /// # Errors
    /// [`Error::InUse`] while a device, stream or buffer still holds the toolkit.
    pub fn finalise(self) -> Result<()> {
        let users = Arc::strong_count(&self.0) - 1;
        if users > 0 {
            return Err(Error::InUse { what: "the toolkit", users });
        }
        acl!(&self, acl.aclFinalize())
    }
}
