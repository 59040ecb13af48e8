//! Device profiling by the toolkit's own profiler.

use crate::toolkit::acl;
use crate::{Device, Error, Result, Toolkit};
use hccl_sys::types::aclprofConfig;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What the profiler collects: interface calls, task times, AI-core metrics, collectives.
const DATA: u64 = 1 | 2 | 4 | 0x20;
/// `ACL_AICORE_PIPE_UTILIZATION`
const METRICS: i32 = 1;

/// A running profile. One at a time in a process; not together with `msprof` or a profiling section given to `aclInit`.
///
/// It writes a folder `PROF_*` of raw data, which `msprof --export` of the toolkit turns into tables and a trace.
#[derive(Debug)]
pub struct Profile {
    toolkit: Toolkit,
    config: *mut aclprofConfig,
}

impl Profile {
    /// Starts to collect about `device` into a folder under `path`.
    ///
    /// # Errors
    /// 148047 if something else profiles; [`Error::Missing`] without the profiler's library.
    pub fn start(device: &Device, path: &Path) -> Result<Profile> {
        let toolkit = device.toolkit().clone();
        let Some(create) = toolkit.cann().prof.aclprofCreateConfig else {
            return Err(Error::Missing { symbol: "aclprofCreateConfig" });
        };
        std::fs::create_dir_all(path)
            .map_err(|error| Error::Io { what: format!("create {}", path.display()), error })?;
        let bytes = path.as_os_str().as_bytes();
        let text = [bytes, b"\0"].concat();
        acl!(&toolkit, prof.aclprofInit(text.as_ptr().cast(), bytes.len()))?;
        let mut devices = [device.id() as u32];
        // SAFETY: a list of one device, no events.
        let config = unsafe { create(devices.as_mut_ptr(), 1, METRICS, std::ptr::null(), DATA) };
        if config.is_null() {
            // 100000: the function gives no code of its own, only null.
            let refused = toolkit.check("aclprofCreateConfig", 100_000, String::new);
            acl!(&toolkit, prof.aclprofFinalize())?;
            refused?;
        }
        let profile = Profile { toolkit, config: config.cast() };
        acl!(&profile.toolkit, prof.aclprofStart(profile.config))?;
        Ok(profile)
    }

    /// Waits for the device and stops.
    ///
    /// # Errors
    /// What the device's tasks or the profiler ended with.
    pub fn stop(self, device: &Device) -> Result<()> {
        device.synchronise()?;
        acl!(&self.toolkit, prof.aclprofStop(self.config))
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        // Both fail only if the profile never started, which was reported.
        let _ = acl!(&self.toolkit, prof.aclprofDestroyConfig(self.config));
        let _ = acl!(&self.toolkit, prof.aclprofFinalize());
    }
}
