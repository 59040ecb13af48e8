//! The delayed device around another device.
#![allow(clippy::unwrap_used)] // helpers of tests: an unsound input stops the test

use ms_core::{Arena, DType, Device, Tensor};
use ms_cpu::CpuBackend;
use ms_kernels::Isa;

fn device(deaf: Option<u64>) -> Device {
    Device::delayed(CpuBackend::new(1, Isa::Portable).unwrap(), deaf)
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
