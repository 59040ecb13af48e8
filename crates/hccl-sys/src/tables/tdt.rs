//! libacl_tdt_channel.so, libacl_tdt_queue.so: data channels.

use crate::types::*;
use std::ffi::{c_char, c_void};

functions! {
    /// libacl_tdt_channel.so, libacl_tdt_queue.so: data channels.
    AclTdt
    acltdtAddDataItem(dataset dataItem: *mut c_void) -> i32;
    acltdtAddQueueRoute(routeList: *mut c_void, route: *const c_void) -> i32;
    acltdtAllocBuf(size: usize, type_: u32, buf: *mut acltdtBuf) -> i32;
    acltdtAppendBufChain(headBuf buf: acltdtBuf) -> i32;
    acltdtAttachQueue(qid: u32, timeout: i32, permission: *mut u32) -> i32;
    acltdtBindQueueRoutes(qRouteList: *mut c_void) -> i32;
    acltdtCleanChannel(handle: *mut c_void) -> i32;
    acltdtCopyBufRef(buf: acltdtBuf, newBuf: *mut acltdtBuf) -> i32;
    acltdtCreateChannel(deviceId: u32, name: *const c_char) -> *mut c_void;
    acltdtCreateChannelWithCapacity(deviceId: u32, name: *const c_char, capacity: usize) -> *mut c_void;
    acltdtCreateDataItem(
        tdtType: i32, dims: *const i64, dimNum: usize, dataType: i32, data: *mut c_void,
        size: usize) -> *mut c_void;
    acltdtCreateDataset() -> *mut c_void;
    acltdtCreateQueue(attr: *const c_void, qid: *mut u32) -> i32;
    acltdtCreateQueueAttr() -> *mut c_void;
    acltdtCreateQueueRoute(srcId dstId: u32) -> *mut c_void;
    acltdtCreateQueueRouteList() -> *mut c_void;
    acltdtCreateQueueRouteQueryInfo() -> *mut c_void;
    acltdtDequeue(qid: u32, buf: *mut acltdtBuf, timeout: i32) -> i32;
    acltdtDequeueData(
        qid: u32, data: *mut c_void, dataSize: usize, retDataSize: *mut usize, userData: *mut c_void,
        userDataSize: usize, timeout: i32) -> i32;
    acltdtDestroyChannel(handle: *mut c_void) -> i32;
    acltdtDestroyDataItem(dataItem: *mut c_void) -> i32;
    acltdtDestroyDataset(dataset: *mut c_void) -> i32;
    acltdtDestroyQueue(qid: u32) -> i32;
    acltdtDestroyQueueAttr(attr: *const c_void) -> i32;
    acltdtDestroyQueueRoute(route: *const c_void) -> i32;
    acltdtDestroyQueueRouteList(routeList: *const c_void) -> i32;
    acltdtDestroyQueueRouteQueryInfo(info: *const c_void) -> i32;
    acltdtEnqueue(qid: u32, buf: acltdtBuf, timeout: i32) -> i32;
    acltdtEnqueueData(
        qid: u32, data: *const c_void, dataSize: usize, userData: *const c_void, userDataSize: usize,
        timeout: i32, rsv: u32) -> i32;
    acltdtFreeBuf(buf: acltdtBuf) -> i32;
    acltdtGetBufChainNum(headBuf: acltdtBuf, num: *mut u32) -> i32;
    acltdtGetBufData(buf: acltdtBuf, dataPtr: *mut *mut c_void, size: *mut usize) -> i32;
    acltdtGetBufDataLen(buf: acltdtBuf, len: *mut usize) -> i32;
    acltdtGetBufFromChain(headBuf: acltdtBuf, index: u32, buf: *mut acltdtBuf) -> i32;
    acltdtGetBufUserData(buf: acltdtBuf, dataPtr: *mut c_void, size offset: usize) -> i32;
    acltdtGetDataAddrFromItem(dataItem: *const c_void) -> *mut c_void;
    acltdtGetDataItem(dataset: *const c_void, index: usize) -> *mut c_void;
    acltdtGetDataSizeFromItem(dataItem: *const c_void) -> u64;
    acltdtGetDataTypeFromItem(dataItem: *const c_void) -> i32;
    acltdtGetDatasetName(dataset: *const c_void) -> *mut c_void;
    acltdtGetDatasetSize(dataset: *const c_void) -> u64;
    acltdtGetDimNumFromItem(dataItem: *const c_void) -> u64;
    acltdtGetDimsFromItem(dataItem: *const c_void, dims: *mut i64, dimNum: usize) -> i32;
    acltdtGetQueueAttr
        (attr: *const c_void, type_: i32, len: usize, paramRetSize: *mut usize, param: *mut c_void) -> i32;
    acltdtGetQueueRoute(routeList: *const c_void, index: usize, route: *mut c_void) -> i32;
    acltdtGetQueueRouteNum(routeList: *const c_void) -> u64;
    acltdtGetQueueRouteParam
        (route: *const c_void, type_: i32, len: usize, paramRetSize: *mut usize, param: *mut c_void) -> i32;
    acltdtGetSliceInfoFromItem(dataItem: *const c_void, sliceNum sliceId: *mut usize) -> i32;
    acltdtGetTensorTypeFromItem(dataItem: *const c_void) -> i32;
    acltdtGrantQueue(qid: u32, pid: i32, permission: u32, timeout: i32) -> i32;
    acltdtQueryChannelSize(handle: *const c_void, size: *mut usize) -> i32;
    acltdtQueryQueueRoutes(queryInfo: *const c_void, qRouteList: *mut c_void) -> i32;
    acltdtReceiveTensor(handle: *const c_void, dataset: *mut c_void, timeout: i32) -> i32;
    acltdtSendTensor(handle dataset: *const c_void, timeout: i32) -> i32;
    acltdtSetBufDataLen(buf: acltdtBuf, len: usize) -> i32;
    acltdtSetBufUserData(buf: acltdtBuf, dataPtr: *const c_void, size offset: usize) -> i32;
    acltdtSetQueueAttr(attr: *mut c_void, type_: i32, len: usize, param: *const c_void) -> i32;
    acltdtSetQueueRouteQueryInfo(param: *mut c_void, type_: i32, len: usize, value: *const c_void) -> i32;
    acltdtStopChannel(handle: *mut c_void) -> i32;
    acltdtUnbindQueueRoutes(qRouteList: *mut c_void) -> i32;
}
