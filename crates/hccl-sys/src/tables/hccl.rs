//! libhccl.so, libhcomm.so: collectives and communicators.

use crate::types::*;
use std::ffi::{c_char, c_void};

functions! {
    /// libhccl.so, libhcomm.so: collectives and communicators.
    Hccl
    HcclAllGather(
        sendBuf recvBuf: *mut c_void, sendCount: u64, dataType: i32, comm: HcclComm,
        stream: aclrtStream) -> i32;
    HcclAllGatherV(
        sendBuf: *mut c_void, sendCount: u64, recvBuf: *mut c_void, recvCounts recvDispls: *const c_void,
        dataType: i32, comm: HcclComm, stream: aclrtStream) -> i32;
    HcclAllReduce(
        sendBuf recvBuf: *mut c_void, count: u64, dataType op: i32, comm: HcclComm,
        stream: aclrtStream) -> i32;
    HcclAlltoAll(
        sendBuf: *const c_void, sendCount: u64, sendType: i32, recvBuf: *const c_void, recvCount: u64,
        recvType: i32, comm: HcclComm, stream: aclrtStream) -> i32;
    HcclAlltoAllV(
        sendBuf sendCounts sdispls: *const c_void, sendType: i32, recvBuf recvCounts rdispls: *const c_void,
        recvType: i32, comm: HcclComm, stream: aclrtStream) -> i32;
    HcclAlltoAllVC(
        sendBuf sendCountMatrix: *const c_void, sendType: i32, recvBuf: *const c_void, recvType: i32,
        comm: HcclComm, stream: aclrtStream) -> i32;
    HcclBarrier(comm: HcclComm, stream: aclrtStream) -> i32;
    HcclBatchSendRecv
        (sendRecvInfo: *mut HcclSendRecvItem, itemNum: u32, comm: HcclComm, stream: aclrtStream) -> i32;
    HcclBroadcast
        (buf: *mut c_void, count: u64, dataType: i32, root: u32, comm: HcclComm, stream: aclrtStream) -> i32;
    HcclCommActivateCommMemory(
        comm: HcclComm, virPtr: *mut c_void, size offset: usize, handle: aclrtDrvMemHandle,
        flags: u64) -> i32;
    HcclCommConfigInit(config: *mut HcclCommConfig) -> ();
    HcclCommDeactivateCommMemory(comm: HcclComm, virPtr: *mut c_void) -> i32;
    HcclCommDeregister(comm: HcclComm, handle: *mut c_void) -> i32;
    HcclCommDestroy(comm: HcclComm) -> i32;
    HcclCommExchangeMem
        (comm: HcclComm, windowHandle: *mut c_void, peerRanks: *mut u32, peerRankNum: u32) -> i32;
    HcclCommInitAll(ndev: u32, devices: *mut i32, comms: *mut HcclComm) -> i32;
    HcclCommInitClusterInfo(clusterInfo: *const c_char, rank: u32, comm: *mut HcclComm) -> i32;
    HcclCommInitClusterInfoConfig
        (clusterInfo: *const c_char, rank: u32, config: *mut HcclCommConfig, comm: *mut HcclComm) -> i32;
    HcclCommInitRootInfo(nRanks: u32, rootInfo: *const HcclRootInfo, rank: u32, comm: *mut HcclComm) -> i32;
    HcclCommInitRootInfoConfig(
        nRanks: u32, rootInfo: *const HcclRootInfo, rank: u32, config: *const HcclCommConfig,
        comm: *mut HcclComm) -> i32;
    HcclCommInitRootInfoScalable(
        nRanks nRoot: u32, rootInfoList: *const HcclRootInfo, rank nExtRoot: u32,
        config: *const HcclCommConfig, comm: *mut HcclComm) -> i32;
    HcclCommRegister
        (comm: HcclComm, addr: *mut c_void, size: u64, handle: *mut *mut c_void, flag: u32) -> i32;
    HcclCommResume(comm: HcclComm) -> i32;
    HcclCommSetMemoryRange(comm: HcclComm, baseVirPtr: *mut c_void, size alignment: usize, flags: u64) -> i32;
    HcclCommSuspend(comm: HcclComm) -> i32;
    HcclCommUnsetMemoryRange(comm: HcclComm, baseVirPtr: *mut c_void) -> i32;
    HcclCommWorkingDevNicSet(comm: HcclComm, ranks: *mut u32, useBackup: *mut bool, nRanks: u32) -> i32;
    HcclCreateComResource(commName: *mut c_char, streamMode: u32, commContext: *mut *mut c_void) -> i32;
    HcclCreateOpResCtx(comm: HcclComm, opType: u8, opArgs: *mut c_void, opResCtx: *mut *mut c_void) -> i32;
    HcclCreateSubCommConfig(
        comm: *mut HcclComm, rankNum: u32, rankIds: *mut u32, subCommId: u64, subCommRankId: u32,
        config: *mut HcclCommConfig, subComm: *mut HcclComm) -> i32;
    HcclGetAicpuOpStreamNotify
        (commName: *mut c_char, Opstream: *mut c_void, aicpuNotify: *mut *mut c_void) -> i32;
    HcclGetCommAsyncError(comm: HcclComm, asyncError: *mut i32) -> i32;
    HcclGetCommConfig(comm: HcclComm, config: i32, configValue: *mut HcclConfigValue) -> i32;
    HcclGetCommConfigCapability() -> u32;
    HcclGetCommName(comm: HcclComm, commName: *mut c_char) -> i32;
    HcclGetConfig(config: i32, configValue: *mut HcclConfigValue) -> i32;
    HcclGetErrorString(code: i32) -> *mut c_void;
    HcclGetRankId(comm: HcclComm, rank: *mut u32) -> i32;
    HcclGetRankSize(comm: HcclComm, rankSize: *mut u32) -> i32;
    HcclGetRootInfo(rootInfo: *mut HcclRootInfo) -> i32;
    HcclGetRootInfoScalable(rootInfo: *mut HcclRootInfo) -> i32;
    HcclGroupEnd() -> i32;
    HcclGroupStart() -> i32;
    HcclKfcAllocOpArgs(opArgs: *mut *mut c_void) -> i32;
    HcclKfcFreeOpArgs(opArgs: *mut c_void) -> i32;
    HcclKfcOpArgsSetAlgConfig(opArgs: *mut c_void, algConfig: *mut c_char) -> i32;
    HcclKfcOpArgsSetCommEngine(opArgs: *mut c_void, commEngine: u8) -> i32;
    HcclKfcOpArgsSetCount(opArgs: *mut c_void, count: u64) -> i32;
    HcclKfcOpArgsSetDstDataType(opArgs: *mut c_void, dstDataType: u8) -> i32;
    HcclKfcOpArgsSetReduceType(opArgs: *mut c_void, reduceType: u32) -> i32;
    HcclKfcOpArgsSetSrcDataType(opArgs: *mut c_void, srcDataType: u8) -> i32;
    HcclRecv(
        recvBuf: *mut c_void, count: u64, dataType: i32, srcRank: u32, comm: HcclComm,
        stream: aclrtStream) -> i32;
    HcclReduce(
        sendBuf recvBuf: *mut c_void, count: u64, dataType op: i32, root: u32, comm: HcclComm,
        stream: aclrtStream) -> i32;
    HcclReduceScatter(
        sendBuf recvBuf: *mut c_void, recvCount: u64, dataType op: i32, comm: HcclComm,
        stream: aclrtStream) -> i32;
    HcclReduceScatterV(
        sendBuf: *mut c_void, sendCounts sendDispls: *const c_void, recvBuf: *mut c_void, recvCount: u64,
        dataType op: i32, comm: HcclComm, stream: aclrtStream) -> i32;
    HcclScatter(
        sendBuf recvBuf: *mut c_void, recvCount: u64, dataType: i32, root: u32, comm: HcclComm,
        stream: aclrtStream) -> i32;
    HcclSend(
        sendBuf: *mut c_void, count: u64, dataType: i32, destRank: u32, comm: HcclComm,
        stream: aclrtStream) -> i32;
    HcclSetCommConfig(comm: HcclComm, config: i32, configValue: HcclConfigValue) -> i32;
    HcclSetConfig(config: i32, configValue: HcclConfigValue) -> i32;
    HccnRpingAddTarget(rpingCtx: HccnRpingCtx, targetNum: u32, target: *mut c_void) -> i32;
    HccnRpingBatchPingStart(rpingCtx: HccnRpingCtx, pktNum interval timeout: u32) -> i32;
    HccnRpingBatchPingStop(rpingCtx: HccnRpingCtx) -> i32;
    HccnRpingDeinit(rpingCtx: HccnRpingCtx) -> i32;
    HccnRpingGetPayload(rpingCtx: HccnRpingCtx, payload: *mut *mut c_void, payloadLen: *mut u32) -> i32;
    HccnRpingGetResult(rpingCtx: HccnRpingCtx, targetNum: u32, target result: *mut c_void) -> i32;
    HccnRpingGetTarget(rpingCtx: HccnRpingCtx, targetNum: u32, target targetState: *mut c_void) -> i32;
    HccnRpingInit(devLogicId: u32, initAttr: *mut c_void, rpingCtx: *mut HccnRpingCtx) -> i32;
    HccnRpingRemoveTarget(rpingCtx: HccnRpingCtx, targetNum: u32, target: *mut c_void) -> i32;
}
