//! A device that delays everything: it computes as another does, and the host sees no result before it has waited for it.
//!
//! Memory of tensors bears the number of the work that wrote it. Waiting ([`Tensor::ready`], [`Backend::synchronize`]) makes
//! visible what was written so far; until then the host sees bytes of ones, which as numbers are none, and the place in the
//! sources that looked is noted. Copies between tensors of one device are its own work, and the host's writes reach it in
//! order, as on a device with a queue.

use crate::clock::Clock;
use crate::{Arena, Backend, DType, Device, Result, Routes};
use std::sync::Arc;

/// A device around another that delays everything it does.
#[derive(Debug)]
pub(crate) struct Delayed<B> {
    inner: B,
}

impl Device {
    /// A device that computes as `inner` and delays everything; of the waits that have something to wait for it leaves out the
    /// `deaf`-th, counted from 1, if there is one. What the host sees too early is in [`Device::early`].
    pub fn delayed(inner: impl Backend + 'static, deaf: Option<u64>) -> Self {
        inner.arena().delay(Clock::new(deaf));
        Self::new(Delayed { inner })
    }

    /// Places in the sources that looked at values of a delaying device before they were there, and how often.
    pub fn early(&self) -> Vec<(String, usize)> {
        self.arena().clock().map(Clock::early).unwrap_or_default()
    }

    /// How often a delaying device was waited for while it had work.
    pub fn waits(&self) -> u64 {
        self.arena().clock().map_or(0, Clock::waits)
    }
}

impl<B: Backend> Delayed<B> {
    fn clock(&self) -> &Clock {
        self.inner.arena().clock().expect("a delayed device has a clock")
    }

    /// What the device does some time after it was asked to.
    pub(crate) fn later<T>(&self, work: impl FnOnce(&B) -> T) -> T {
        let _at_work = self.clock().begin();
        work(&self.inner)
    }

    /// What the host is told at once.
    pub(crate) fn answer<T>(&self, work: impl FnOnce(&B) -> T) -> T {
        let answer = self.later(work);
        self.clock().answer();
        answer
    }
}

impl<B: Backend> Backend for Delayed<B> {
    fn name(&self) -> String {
        format!("delayed {}", self.inner.name())
    }

    fn arithmetic(&self) -> String {
        self.inner.arithmetic()
    }

    fn arena(&self) -> &Arena {
        self.inner.arena()
    }

    fn table_dtype(&self) -> DType {
        self.inner.table_dtype()
    }

    fn routes(
        &self,
        name: &'static str,
        sizes: [usize; 3],
        make: &mut dyn FnMut() -> Result<Routes>,
    ) -> Result<Arc<Routes>> {
        self.inner.routes(name, sizes, make)
    }

    fn synchronize(&self) -> Result<()> {
        self.clock().wait();
        self.inner.synchronize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuBackend, Tensor};

    fn device(deaf: Option<u64>) -> Device {
        Device::delayed(CpuBackend::portable(), deaf)
    }

    fn values(device: &Device, values: &[f32]) -> Tensor {
        Tensor::from_slice(device.arena(), [values.len()], values).unwrap()
    }

    #[test]
    fn a_result_is_seen_once_it_was_waited_for() {
        let device = device(None);
        let a = values(&device, &[1.0, 2.0]);
        let sum = device.add(&a, &a).unwrap();
        assert!(sum.as_slice::<f32>().unwrap().iter().all(|v| v.is_nan()));
        let [(place, 1)] = &device.early()[..] else { panic!("{:?}", device.early()) };
        assert!(place.contains("delayed.rs:"), "{place}");
        // Operations see what others have written.
        let twice = device.add(&sum, &sum).unwrap();
        assert_eq!(twice.ready().unwrap().as_slice::<f32>().unwrap(), [4.0, 8.0]);
        assert_eq!(sum.as_slice::<f32>().unwrap(), [2.0, 4.0]);
        assert_eq!((device.early().len(), device.waits()), (1, 1));
    }

    #[test]
    fn the_host_does_not_write_where_the_device_has_yet_to() {
        let device = device(None);
        let a = values(&device, &[1.0, 2.0]);
        let mut sum = device.add(&a, &a).unwrap();
        sum.as_mut_slice::<f32>().unwrap()[0] = 7.0;
        assert!(sum.ready().unwrap().as_slice::<f32>().unwrap()[1].is_nan(), "what the device wrote is lost");
        assert_eq!(device.early().len(), 1);
        sum.as_mut_slice::<f32>().unwrap().fill(7.0);
        device.scale(&mut sum, 2.0).unwrap();
        sum.whole_mut().unwrap().as_mut_slice::<f32>().unwrap()[0] = 1.0;
        assert_eq!(device.early().len(), 2);
    }

    #[test]
    fn copies_are_the_devices_work_and_numbers_are_answers() {
        let device = device(None);
        let a = values(&device, &[1.0, 2.0, 3.0, 4.0]).reshape([2, 2]).unwrap();
        let mut copy = a.copied().unwrap();
        copy.put_rows(&a, [(0, 1)]).unwrap();
        assert!(copy.as_slice::<f32>().unwrap()[0].is_nan());
        assert_eq!(device.early().len(), 1);
        // What comes to another place is a look.
        let mut here = Tensor::zeros(&Arena::default(), DType::F32, [4]);
        here.put(0, &copy).unwrap();
        assert_eq!((device.early().len(), here.as_slice::<f32>().unwrap()[0].is_nan()), (2, true));
        assert_eq!(device.sum_squares(&copy).unwrap().value(), 50.0);
        assert_eq!(copy.as_slice::<f32>().unwrap(), [3.0, 4.0, 3.0, 4.0]);
        assert_eq!(device.early().len(), 2);
    }

    #[test]
    fn a_wait_can_be_left_out() {
        let device = device(Some(2));
        let mut a = values(&device, &[1.0]);
        for (wait, early) in [(1, 0), (2, 1), (3, 1)] {
            a = device.add(&a, &a).unwrap();
            a.ready().unwrap().as_slice::<f32>().unwrap();
            assert_eq!((device.waits(), device.early().len()), (wait, early));
        }
    }
}
