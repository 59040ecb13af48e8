//! Types of the interface: opaque objects, handles, and the structs whose layout is published.
//!
//! All C enums are `i32`, so a value unknown to this version is not undefined behaviour. Sizes and offsets are asserted when
//! this file is compiled; they are the same on x86-64 and aarch64 Linux.

use std::ffi::{c_char, c_void};
use std::mem::{align_of, offset_of, size_of};

/// The class of an argument as the tables of the interface name it.
pub trait AbiClass {
    /// `p`, `i32`, `f64`, `s:NAME` …
    const CLASS: &'static str;
}

macro_rules! classes {
    ($($t:ty => $class:literal;)*) => {$(
        impl AbiClass for $t {
            const CLASS: &'static str = $class;
        }
    )*};
}
classes! {
    i8 => "i8"; u8 => "u8"; i16 => "i16"; u16 => "u16"; i32 => "i32"; u32 => "u32"; i64 => "i64"; u64 => "u64";
    usize => "u64"; f32 => "f32"; f64 => "f64"; bool => "bool"; () => "v";
    aclrtIpcEventHandle => "s:aclrtIpcEventHandle"; dim3 => "s:dim3"; va_list => "s:va_list";
    aclmdlRICondTaskParams => "s:tagAclmdlRICondTaskParams"; HcclConfigValue => "s:HcclConfigValue";
    aclrtMemLocation => "s:aclrtMemManagedLocation";
}
impl<T: ?Sized> AbiClass for *const T {
    const CLASS: &'static str = "p";
}
impl<T: ?Sized> AbiClass for *mut T {
    const CLASS: &'static str = "p";
}

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}
opaque! {
    /// A tensor's description for the operator library.
    aclTensor;
    /// One value with its type.
    aclScalar;
    /// An array of i64 on the host.
    aclIntArray;
    /// An array of f32 on the host.
    aclFloatArray;
    /// An array of bool on the host.
    aclBoolArray;
    /// Tensors; the list owns them.
    aclTensorList;
    /// Scalars; the list owns them.
    aclScalarList;
    /// What a first phase has planned; the second phase consumes it.
    aclOpExecutor;
    /// What is to be profiled.
    aclprofConfig;
    /// A tensor's description of the older interface.
    aclTensorDesc;
    /// An address with a size.
    aclDataBuffer;
    /// Attributes of an operator by type name.
    aclopAttr;
    /// A model's description.
    aclmdlDesc;
    /// Inputs or outputs of a model.
    aclmdlDataset;
    /// Step marks of the profiler.
    aclprofStepInfo;
    /// Options of a graph dump.
    aclGraphDumpOption;
}

/// A tensor that the prototype declares constant.
pub(crate) type Tensor = *const aclTensor;
/// A tensor that it does not.
pub(crate) type TensorMut = *mut aclTensor;
/// A list of tensors.
pub(crate) type Tensors = *const aclTensorList;
/// A list of tensors that is not constant.
pub(crate) type TensorsMut = *mut aclTensorList;
/// One value.
pub(crate) type Scalar = *const aclScalar;
/// One value that is not constant.
pub(crate) type ScalarMut = *mut aclScalar;
/// A list of values.
pub(crate) type Scalars = *const aclScalarList;
/// An array of i64.
pub(crate) type Ints = *const aclIntArray;
/// An array of i64 that is not constant.
pub(crate) type IntsMut = *mut aclIntArray;
/// An array of f32.
pub(crate) type Floats = *const aclFloatArray;
/// An array of f32 that is not constant.
pub(crate) type FloatsMut = *mut aclFloatArray;
/// An array of bool.
pub(crate) type Bools = *const aclBoolArray;
/// A C string.
pub(crate) type Text = *const c_char;
/// A C string that is not constant.
pub(crate) type TextMut = *mut c_char;

macro_rules! handles {
    ($($name:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, a pointer that only the library looks behind.")]
        pub type $name = *mut c_void;
    )*};
}
handles! {
    HcclComm;
    HccnRpingCtx;
    aclDataDeallocator;
    aclFinalizeCallbackFunc;
    aclInitCallbackFunc;
    aclmdlRI;
    aclmdlRICondHandle;
    aclmdlRITask;
    aclopCompileFunc;
    aclrtAllocator;
    aclrtAllocatorAllocAdviseFunc;
    aclrtAllocatorAllocFunc;
    aclrtAllocatorDesc;
    aclrtAllocatorFreeFunc;
    aclrtAllocatorGetAddrFromBlockFunc;
    aclrtArgsHandle;
    aclrtBinHandle;
    aclrtBinary;
    aclrtCallback;
    aclrtCntNotify;
    aclrtContext;
    aclrtDeviceStateCallback;
    aclrtDeviceTaskAbortCallback;
    aclrtDrvMemHandle;
    aclrtEvent;
    aclrtExceptionInfoCallback;
    aclrtFuncHandle;
    aclrtHostFunc;
    aclrtLabel;
    aclrtLabelList;
    aclrtMbuf;
    aclrtMemPool;
    aclrtNotify;
    aclrtOpExceptionCallback;
    aclrtParamHandle;
    aclrtSnapShotCallBack;
    aclrtStream;
    aclrtStreamStateCallback;
    aclrtTaskGrp;
    acltdtBuf;
}

/// 4108 bytes that one rank makes and all ranks need.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HcclRootInfo {
    /// Opaque; not text.
    pub internal: [c_char; 4108],
}

/// One send or receive of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HcclSendRecvItem {
    /// 0 send, 1 receive.
    pub send_recv_type: i32,
    /// Device address.
    pub buf: *mut c_void,
    /// Elements.
    pub count: u64,
    /// `HcclDataType`
    pub data_type: i32,
    /// The other rank.
    pub remote_rank: u32,
}

/// What a C function with a variable list is given: on x86-64 an array, which becomes its address, on aarch64 a struct of 32
/// bytes, of which the address of a copy is passed.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct va_list(pub *mut c_void);

/// Passed by value: one integer register.
#[repr(C)]
#[derive(Clone, Copy)]
pub union HcclConfigValue {
    /// The only member.
    pub value: i32,
}

/// A communicator's configuration in the form of version 5, which every release reads.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HcclCommConfig {
    /// Bytes of this struct.
    pub size: usize,
    /// 0xf0f0f0f0
    pub magic: u32,
    /// 5
    pub version: u32,
    /// 0
    pub reserved: u64,
    /// MB of each of two buffers; all ones where not set.
    pub buffer_size: u32,
    /// All ones where not set.
    pub deterministic: u32,
    /// Name of the group.
    pub comm_name: [c_char; 128],
    /// Text of the user's own.
    pub udi: [c_char; 128],
    /// 0 default, 1 host, 2 AI CPU, 3 AIV.
    pub op_expansion_mode: u32,
    /// All ones where not set.
    pub rdma_traffic_class: u32,
    /// All ones where not set.
    pub rdma_service_level: u32,
}

impl HcclCommConfig {
    /// As the interface's inline `HcclCommConfigInit` fills it, which is in no library.
    pub const fn new() -> HcclCommConfig {
        HcclCommConfig {
            size: 300,
            magic: 0xf0f0_f0f0,
            version: 5,
            reserved: 0,
            buffer_size: u32::MAX,
            deterministic: u32::MAX,
            comm_name: [0; 128],
            udi: [0; 128],
            op_expansion_mode: 0,
            rdma_traffic_class: u32::MAX,
            rdma_service_level: u32::MAX,
        }
    }
}

impl Default for HcclCommConfig {
    fn default() -> HcclCommConfig {
        HcclCommConfig::new()
    }
}

/// Rates in percent; -1 is not available.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct aclrtUtilizationInfo {
    /// Cube units.
    pub cube: i32,
    /// Vector units.
    pub vector: i32,
    /// AI CPUs.
    pub aicpu: i32,
    /// Memory.
    pub memory: i32,
    /// Must be null.
    pub extend: *mut c_void,
}

/// A device or the host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct aclrtMemLocation {
    /// Device number.
    pub id: u32,
    /// Host or device.
    pub kind: i32,
}

/// Where a pointer points to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct aclrtPtrAttributes {
    /// Host or device.
    pub location: aclrtMemLocation,
    /// Bytes of a page.
    pub page_size: u32,
    /// Reserved.
    pub reserved: [u32; 4],
}

/// Properties of physical memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct aclrtPhysicalMemProp {
    /// Kind of handle.
    pub handle_type: i32,
    /// Kind of allocation.
    pub allocation_type: i32,
    /// `aclrtMemAttr`
    pub mem_attr: i32,
    /// The device.
    pub location: aclrtMemLocation,
    /// Reserved.
    pub reserve: u64,
}

/// Memory with errors.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct aclrtMemUceInfo {
    /// Address.
    pub addr: *mut c_void,
    /// Bytes.
    pub len: usize,
    /// Reserved.
    pub reserved: [usize; 14],
}

/// Version texts of a package.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct aclCANNPackageVersion {
    /// The whole version.
    pub version: [c_char; 128],
    /// Its parts, and reserved bytes.
    pub parts: [c_char; 384],
}

/// An event for another process: `ACL_IPC_EVENT_HANDLE_SIZE` bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct aclrtIpcEventHandle {
    /// Opaque.
    pub reserved: [c_char; 64],
}

/// Three sizes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dim3 {
    /// First.
    pub x: u32,
    /// Second.
    pub y: u32,
    /// Third.
    pub z: u32,
}

/// A conditional task of a captured model: by the value behind `handle` one of its models runs, or none.
///
/// # Source
/// The runtime's API reference, page "Structs", from 9.1 on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct aclmdlRICondTaskParams {
    /// The condition's handle.
    pub handle: *mut c_void,
    /// 0: if, 1: while, 2: switch.
    pub type_: i32,
    /// Models.
    pub size: u32,
    /// The models, `[size]`.
    pub model_ris: *mut aclmdlRI,
}

const _: () = {
    assert!(size_of::<aclmdlRICondTaskParams>() == 24 && align_of::<aclmdlRICondTaskParams>() == 8);
    assert!(offset_of!(aclmdlRICondTaskParams, type_) == 8 && offset_of!(aclmdlRICondTaskParams, size) == 12);
    assert!(offset_of!(aclmdlRICondTaskParams, model_ris) == 16);
    assert!(size_of::<HcclRootInfo>() == 4108 && align_of::<HcclRootInfo>() == 1);
    assert!(size_of::<HcclSendRecvItem>() == 32);
    assert!(offset_of!(HcclSendRecvItem, buf) == 8 && offset_of!(HcclSendRecvItem, count) == 16);
    assert!(offset_of!(HcclSendRecvItem, data_type) == 24 && offset_of!(HcclSendRecvItem, remote_rank) == 28);
    assert!(size_of::<HcclConfigValue>() == 4);
    assert!(offset_of!(HcclCommConfig, buffer_size) == 24 && offset_of!(HcclCommConfig, deterministic) == 28);
    assert!(offset_of!(HcclCommConfig, comm_name) == 32 && offset_of!(HcclCommConfig, udi) == 160);
    assert!(
        offset_of!(HcclCommConfig, op_expansion_mode) == 288
            && offset_of!(HcclCommConfig, rdma_service_level) == 296
    );
    assert!(size_of::<aclrtUtilizationInfo>() == 24 && align_of::<aclrtUtilizationInfo>() == 8);
    assert!(size_of::<aclrtPtrAttributes>() == 28 && align_of::<aclrtPtrAttributes>() == 4);
    assert!(size_of::<aclrtMemLocation>() == 8);
    assert!(size_of::<aclrtPhysicalMemProp>() == 32 && offset_of!(aclrtPhysicalMemProp, mem_attr) == 8);
    assert!(
        offset_of!(aclrtPhysicalMemProp, location) == 12 && offset_of!(aclrtPhysicalMemProp, reserve) == 24
    );
    assert!(size_of::<aclrtMemUceInfo>() == 128);
    assert!(size_of::<aclCANNPackageVersion>() == 512 && align_of::<aclCANNPackageVersion>() == 1);
    // The last is one of 4 bytes, and the head is of 8: 300 bytes are said, 304 are held.
    assert!(size_of::<HcclCommConfig>() == 304);
    assert!(size_of::<aclrtIpcEventHandle>() == 64 && align_of::<aclrtIpcEventHandle>() == 1);
    assert!(size_of::<dim3>() == 12);
};
