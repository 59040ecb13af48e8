//! libacl_op_compiler.so: options and runs of operators by type name.

use crate::types::*;
use std::ffi::{c_char, c_int, c_void};

functions! {
    /// libacl_op_compiler.so: options and runs of operators by type name.
    AclCompiler
    aclCreateGraphDumpOpt() -> *mut c_void;
    aclDestroyGraphDumpOpt(graphDumpOpt: *const aclGraphDumpOption) -> i32;
    aclGenGraphAndDumpForOp(
        opType: *const c_char, numInputs: c_int, inputDesc: *mut *const aclTensorDesc,
        inputs: *mut *const aclDataBuffer, numOutputs: c_int, outputDesc: *mut *const aclTensorDesc,
        outputs: *mut *mut aclDataBuffer, attr: *const aclopAttr, engineType: i32,
        graphDumpPath: *const c_char, graphDumpOpt: *const aclGraphDumpOption) -> i32;
    aclGetCompileopt(opt: i32, value: *mut c_char, length: usize) -> i32;
    aclGetCompileoptSize(opt: i32) -> u64;
    aclSetCompileopt(opt: i32, value: *const c_char) -> i32;
    aclopCompile(
        opType: *const c_char, numInputs: c_int, inputDesc: *mut *const aclTensorDesc, numOutputs: c_int,
        outputDesc: *mut *const aclTensorDesc, attr: *const aclopAttr, engineType compileFlag: i32,
        opPath: *const c_char) -> i32;
    aclopCompileAndExecute(
        opType: *const c_char, numInputs: c_int, inputDesc: *mut *const aclTensorDesc,
        inputs: *mut *const aclDataBuffer, numOutputs: c_int, outputDesc: *mut *const aclTensorDesc,
        outputs: *mut *mut aclDataBuffer, attr: *const aclopAttr, engineType compileFlag: i32,
        opPath: *const c_char, stream: aclrtStream) -> i32;
    aclopCompileAndExecuteV2(
        opType: *const c_char, numInputs: c_int, inputDesc: *mut *mut aclTensorDesc,
        inputs: *mut *mut aclDataBuffer, numOutputs: c_int, outputDesc: *mut *mut aclTensorDesc,
        outputs: *mut *mut aclDataBuffer, attr: *mut aclopAttr, engineType compileFlag: i32,
        opPath: *const c_char, stream: aclrtStream) -> i32;
    aclopSetCompileFlag(flag: i32) -> i32;
}
