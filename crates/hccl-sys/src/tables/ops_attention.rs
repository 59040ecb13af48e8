//! libopapi_transformer.so (9.x), libopapi.so: attention, positions, caches, recurrences.

use crate::types::*;

operators! {
    /// libopapi_transformer.so (9.x), libopapi.so: attention, positions, caches, recurrences.
    OpsAttention
    aclnnApplyRotaryPosEmb(queryRef keyRef: TensorMut, cos sin: Tensor, layout: i64);
    aclnnApplyRotaryPosEmbV2(queryRef keyRef: TensorMut, cos sin: Tensor, layout: i64, rotaryMode: TextMut);
    aclnnAttentionUpdate(lse localOut: Tensors, updateType: i64, out lseOut: TensorMut);
    aclnnBSASelectBlockMask(
        query key: Tensor, blockShape postBlockShape actualSeqLengths actualSeqLengthsKV actualBlockLenQuery
        actualBlockLenKey: Ints, qInputLayout kvInputLayout: TextMut, numKeyValueHeads: i64, scaleValue
        sparsity: f64, blockSparseMaskOut: TensorMut);
    aclnnBlockSparseAttention(
        query key value blockSparseMaskOptional attenMaskOptional: Tensor, blockShapeOptional
        actualSeqLengthsOptional actualSeqLengthsKvOptional: Ints, blockTableOptional: Tensor, qInputLayout
        kvInputLayout: TextMut, numKeyValueHeads maskType: i64, scaleValue: f64, innerPrecise blockSize
        preTokens nextTokens softmaxLseFlag: i64, attentionOut softmaxLseOptional: TensorMut);
    aclnnBlockSparseAttentionGrad(
        dout query key value attentionOut softmaxLse blockSparseMaskOptional attenMaskOptional: Tensor,
        blockShapeOptional actualSeqLengthsOptional actualSeqLengthsKvOptional: Ints, qInputLayout
        kvInputLayout: TextMut, numKeyValueHeads maskType: i64, scaleValue: f64, preTokens nextTokens: i64, dq
        dk dv: TensorMut);
    aclnnBlockSparseAttentionV2(
        query key value blockSparseMaskOptional attenMaskOptional: Tensor, blockShapeOptional
        actualSeqLengthsOptional actualSeqLengthsKvOptional: Ints, blockTableOptional qDequantScaleOptional
        kDequantScaleOptional vDequantScaleOptional: Tensor, qInputLayout kvInputLayout: TextMut,
        numKeyValueHeads maskType: i64, scaleValue: f64, innerPrecise blockSize preTokens nextTokens
        softmaxLseFlag: i64, attentionOut softmaxLseOptional: TensorMut);
    aclnnCausalConv1dFn(
        x weight: Tensor, convStatesRef: TensorMut, biasOptional queryStartLocOptional cacheIndicesOptional
        initialStateModeOptional blockIdxFirstScheduledTokenOptional blockIdxLastScheduledTokenOptional
        initialStateIdxOptional numComputedTokensOptional: Tensor, activation: Text, nullBlockId
        blockSizeToAlign: i64, y: TensorMut);
    aclnnCausalConv1dUpdate(
        x weight: Tensor, convStatesRef: TensorMut, biasOptional queryStartLocOptional cacheIndicesOptional
        numAcceptedTokensOptional blockIdxLastScheduledTokenOptional initialStateIdxOptional: Tensor,
        activation: Text, nullBlockId maxQueryLen: i64, y: TensorMut);
    aclnnChunkGatedDeltaRule(
        query key value beta initialState actualSeqLengths gOptional: Tensor, scaleValue: f32, out
        finalState: Tensor);
    aclnnCompressor(
        x wkv wgate stateCacheRef ape stateBlockTable cuSeqlens seqused startPos: Tensor, cmpRatio coff
        cacheMode stateCacheStrideDim0: i64, cmpKv stateCache: Tensor);
    aclnnDenseLightningIndexerGradKLLoss(
        query key queryIndex keyIndex weights softmaxMax softmaxSum softmaxMaxIndex softmaxSumIndex queryRope
        keyRope: Tensor, actualSeqLengthsQuery actualSeqLengthsKey: Ints, scaleValue: f64, layout: TextMut,
        sparseMode preTokens nextTokens: i64, dQueryIndex dKeyIndex dWeights loss: Tensor);
    aclnnDenseLightningIndexerSoftmaxLse(
        queryIndex keyIndex weight: Tensor, actualSeqLengthsQueryOptional actualSeqLengthsKeyOptional: Ints,
        layoutOptional: TextMut, sparseMode preTokens nextTokens: i64, softmaxMaxOut softmaxSumOut: Tensor);
    aclnnDequantRopeQuantKvcache(
        x cos sin: Tensor, kCacheRef vCacheRef: TensorMut, indices scaleK scaleV offsetKOptional
        offsetVOptional weightScaleOptional activationScaleOptional biasOptional: Tensor, sizeSplits: Ints,
        quantModeOptional layoutOptional: TextMut, kvOutput: bool, cacheModeOptional: TextMut, qOut kOut
        vOut: Tensor);
    aclnnFlashAttentionScore(
        query key value realShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional: Tensor,
        prefixOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens headNum: i64,
        inputLayout: TextMut, innerPrecise sparseMode: i64, softmaxMaxOut softmaxSumOut softmaxOutOut
        attentionOutOut: Tensor);
    aclnnFlashAttentionScoreGrad(
        query keyIn value dy pseShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional
        softmaxMaxOptional softmaxSumOptional softmaxInOptional attentionInOptional: Tensor,
        prefixOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens headNum: i64,
        inputLayout: TextMut, innerPrecise sparseMode: i64, dqOut dkOut dvOut dpseOut: Tensor);
    aclnnFlashAttentionScoreGradV2(
        query keyIn value dy pseShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional
        softmaxMaxOptional softmaxSumOptional softmaxInOptional attentionInOptional: Tensor, prefixOptional
        qStartIdxOptional kvStartIdxOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens
        headNum: i64, inputLayout: TextMut, innerPrecise sparseMode pseType: i64, dqOut dkOut dvOut
        dpseOut: Tensor);
    aclnnFlashAttentionScoreGradV3(
        query keyIn value dy pseShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional
        softmaxMaxOptional softmaxSumOptional softmaxInOptional attentionInOptional sinkInOptional: Tensor,
        prefixOptional qStartIdxOptional kvStartIdxOptional: Ints, scaleValue keepProb: f64, preTokens
        nextTokens headNum: i64, inputLayout: TextMut, innerPrecise sparseMode pseType: i64, dqOut dkOut dvOut
        dpseOut dsinkOut: Tensor);
    aclnnFlashAttentionScoreGradV4(
        query keyIn value dy pseShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional
        softmaxMaxOptional softmaxSumOptional softmaxInOptional attentionInOptional sinkInOptional
        queryRopeOptional keyRopeOptional dScaleQOptional dScaleKOptional dScaleVOptional dScaleDyOptional
        dScaleOOptional: Tensor, prefixOptional actualSeqQLenOptional actualSeqKvLenOptional qStartIdxOptional
        kvStartIdxOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens headNum: i64, inputLayout
        softmaxInLayout: TextMut, innerPrecise sparseMode pseType seed offset outDtype: i64, dqOut dkOut dvOut
        dqRopeOut dkRopeOut dpseOut dsinkOut: Tensor);
    aclnnFlashAttentionScoreV2(
        query key value realShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional: Tensor,
        prefixOptional qStartIdxOptional kvStartIdxOptional: Ints, scaleValue keepProb: f64, preTokens
        nextTokens headNum: i64, inputLayout: TextMut, innerPrecise sparseMode pseType: i64, softmaxMaxOut
        softmaxSumOut softmaxOutOut attentionOutOut: Tensor);
    aclnnFlashAttentionScoreV3(
        query key value realShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional
        sinkOptional: Tensor, prefixOptional qStartIdxOptional kvStartIdxOptional: Ints, scaleValue
        keepProb: f64, preTokens nextTokens headNum: i64, inputLayout: TextMut, innerPrecise sparseMode
        pseType: i64, softmaxMaxOut softmaxSumOut softmaxOutOut attentionOutOut: Tensor);
    aclnnFlashAttentionScoreV4(
        query key value realShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional
        queryRopeOptional keyRopeOptional dScaleQOptional dScaleKOptional dScaleVOptional
        sinkOptional: Tensor, prefixOptional actualSeqQLenOptional actualSeqKvLenOptional qStartIdxOptional
        kvStartIdxOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens headNum: i64,
        inputLayout: TextMut, innerPrecise sparseMode outDtype pseType: i64, softmaxOutLayout: TextMut, seed
        offset: i64, softmaxMaxOut softmaxSumOut softmaxOutOut attentionOutOut: Tensor);
    aclnnFlashAttentionUnpaddingScoreGrad(
        query keyIn value dy pseShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional
        softmaxMaxOptional softmaxSumOptional softmaxInOptional attentionInOptional: Tensor, prefixOptional
        actualSeqQLenOptional actualSeqKvLenOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens
        headNum: i64, inputLayout: TextMut, innerPrecise sparseMode: i64, dqOut dkOut dvOut dpseOut: Tensor);
    aclnnFlashAttentionUnpaddingScoreGradV2(
        query keyIn value dy pseShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional
        softmaxMaxOptional softmaxSumOptional softmaxInOptional attentionInOptional: Tensor, prefixOptional
        actualSeqQLenOptional actualSeqKvLenOptional qStartIdxOptional kvStartIdxOptional: Ints, scaleValue
        keepProb: f64, preTokens nextTokens headNum: i64, inputLayout: TextMut, innerPrecise sparseMode
        pseType: i64, dqOut dkOut dvOut dpseOut: Tensor);
    aclnnFlashAttentionUnpaddingScoreGradV3(
        query queryRope keyIn keyInRope value dy pseShiftOptional dropMaskOptional paddingMaskOptional
        attenMaskOptional softmaxMaxOptional softmaxSumOptional softmaxInOptional attentionInOptional: Tensor,
        prefixOptional actualSeqQLenOptional actualSeqKvLenOptional qStartIdxOptional
        kvStartIdxOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens headNum: i64,
        inputLayout: TextMut, innerPrecise sparseMode pseType: i64, dqOut dqRopeOut dkOut dkRopeOut dvOut
        dpseOut: Tensor);
    aclnnFlashAttentionUnpaddingScoreGradV4(
        query keyIn value dy pseShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional
        softmaxMaxOptional softmaxSumOptional softmaxInOptional attentionInOptional: Tensor, prefixOptional
        actualSeqQLenOptional actualSeqKvLenOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens
        headNum: i64, inputLayout: TextMut, innerPrecise sparseMode: i64, dqOut dkOut dvOut dpseOut: Tensor,
        softmaxInLayout: TextMut);
    aclnnFlashAttentionUnpaddingScoreGradV5(
        query queryRope keyIn keyInRope value dy pseShiftOptional dropMaskOptional paddingMaskOptional
        attenMaskOptional softmaxMaxOptional softmaxSumOptional softmaxInOptional attentionInOptional
        sinkInOptional: Tensor, prefixOptional actualSeqQLenOptional actualSeqKvLenOptional qStartIdxOptional
        kvStartIdxOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens headNum: i64,
        inputLayout: TextMut, innerPrecise sparseMode pseType: i64, softmaxInLayout: TextMut, dqOut dqRopeOut
        dkOut dkRopeOut dvOut dpseOut dsinkOut: Tensor);
    aclnnFlashAttentionVarLenScore(
        query key value realShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional: Tensor,
        prefixOptional actualSeqQLenOptional actualSeqKvLenOptional: Ints, scaleValue keepProb: f64, preTokens
        nextTokens headNum: i64, inputLayout: TextMut, innerPrecise sparseMode: i64, softmaxMaxOut
        softmaxSumOut softmaxOutOut attentionOutOut: Tensor);
    aclnnFlashAttentionVarLenScoreV2(
        query key value realShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional: Tensor,
        prefixOptional actualSeqQLenOptional actualSeqKvLenOptional qStartIdxOptional
        kvStartIdxOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens headNum: i64,
        inputLayout: TextMut, innerPrecise sparseMode pseType: i64, softmaxMaxOut softmaxSumOut softmaxOutOut
        attentionOutOut: Tensor);
    aclnnFlashAttentionVarLenScoreV3(
        query queryRope key keyRope value realShiftOptional dropMaskOptional paddingMaskOptional
        attenMaskOptional: Tensor, prefixOptional actualSeqQLenOptional actualSeqKvLenOptional
        qStartIdxOptional kvStartIdxOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens
        headNum: i64, inputLayout: TextMut, innerPrecise sparseMode pseType: i64, softmaxMaxOut softmaxSumOut
        softmaxOutOut attentionOutOut: Tensor);
    aclnnFlashAttentionVarLenScoreV4(
        query key value realShiftOptional dropMaskOptional paddingMaskOptional attenMaskOptional: Tensor,
        prefixOptional actualSeqQLenOptional actualSeqKvLenOptional: Ints, scaleValue keepProb: f64, preTokens
        nextTokens headNum: i64, inputLayout: TextMut, innerPrecise sparseMode: i64,
        softmaxOutLayout: TextMut, softmaxMaxOut softmaxSumOut softmaxOutOut attentionOutOut: Tensor);
    aclnnFlashAttentionVarLenScoreV5(
        query queryRope key keyRope value realShiftOptional dropMaskOptional paddingMaskOptional
        attenMaskOptional sinkOptional: Tensor, prefixOptional actualSeqQLenOptional actualSeqKvLenOptional
        qStartIdxOptional kvStartIdxOptional: Ints, scaleValue keepProb: f64, preTokens nextTokens
        headNum: i64, inputLayout: TextMut, innerPrecise sparseMode pseType: i64, softmaxOutLayout: TextMut,
        softmaxMaxOut softmaxSumOut softmaxOutOut attentionOutOut: Tensor);
    aclnnFlashAttn(
        q k v blockTableOptional cuSeqlensQOptional cuSeqlensKvOptional sequsedQOptional sequsedKvOptional
        sinksOptional attnMaskOptional metadataOptional: Tensor, softmaxScale: f64, maskMode winLeft winRight
        maxSeqlenQ maxSeqlenKV: i64, layoutQ layoutKv layoutOut: Text, returnSoftmaxLse: i64, attnOut
        softmaxLseOptional: Tensor);
    aclnnFlashAttnMetadata(
        cuSeqlensQOptional cuSeqlensKvOptional sequsedQOptional sequsedKvOptional: Tensor, batchSize
        maxSeqlenQ maxSeqlenKv numHeadsQ numHeadsKv headDim maskMode winLeft winRight: i64, layoutQ layoutKv
        layoutOut: Text, metaData: Tensor);
    aclnnFusedCausalConv1d(
        x weight: Tensor, convStates: TensorMut, queryStartLoc cacheIndices initialStateMode bias
        numAcceptedTokens numComputedTokens blockIdxFirstScheduledToken blockIdxLastScheduledToken
        initialStateIdx: Tensor, activationMode padSlotId runMode maxQueryLen residualConnection blockSize
        convMode: i64, y: TensorMut);
    aclnnFusedFloydAttention(
        query key1 value1 key2 value2 attenMaskOptional: Tensor, scaleValueOptional: f64, softmaxMaxOut
        softmaxSumOut attentionOutOut: Tensor);
    aclnnFusedFloydAttentionGrad(
        query key1 value1 key2 value2 dy attenMaskOptional softmaxMax softmaxSum attentionIn: Tensor,
        scaleValue: f64, dqOut dk1Out dv1Out dk2Out dv2Out: Tensor);
    aclnnFusedInferAttentionScore(
        query: Tensor, key value: Tensors, pseShift attenMask: Tensor, actualSeqLengths
        actualSeqLengthsKv: Ints, deqScale1 quantScale1 deqScale2 quantScale2 quantOffset2 antiquantScale
        antiquantOffset blockTable queryPaddingSize kvPaddingSize: Tensor, numHeads: i64, scaleValue: f64,
        preTokens nextTokens: i64, inputLayout: TextMut, numKeyValueHeads sparseMode innerPrecise blockSize
        antiquantMode: i64, softmaxLseFlag: bool, attentionOut softmaxLse: Tensor);
    aclnnFusedInferAttentionScoreV2(
        query: Tensor, key value: Tensors, pseShiftOptional attenMaskOptional: Tensor,
        actualSeqLengthsOptional actualSeqLengthsKvOptional: Ints, deqScale1Optional quantScale1Optional
        deqScale2Optional quantScale2Optional quantOffset2Optional antiquantScaleOptional
        antiquantOffsetOptional blockTableOptional queryPaddingSizeOptional kvPaddingSizeOptional
        keyAntiquantScaleOptional keyAntiquantOffsetOptional valueAntiquantScaleOptional
        valueAntiquantOffsetOptional keySharedPrefixOptional valueSharedPrefixOptional: Tensor,
        actualSharedPrefixLenOptional: Ints, numHeads: i64, scaleValue: f64, preTokens nextTokens: i64,
        inputLayout: TextMut, numKeyValueHeads sparseMode innerPrecise blockSize antiquantMode: i64,
        softmaxLseFlag: bool, keyAntiquantMode valueAntiquantMode: i64, attentionOut softmaxLse: Tensor);
    aclnnFusedInferAttentionScoreV3(
        query: Tensor, key value: Tensors, pseShiftOptional attenMaskOptional: Tensor,
        actualSeqLengthsOptional actualSeqLengthsKvOptional: Ints, deqScale1Optional quantScale1Optional
        deqScale2Optional quantScale2Optional quantOffset2Optional antiquantScaleOptional
        antiquantOffsetOptional blockTableOptional queryPaddingSizeOptional kvPaddingSizeOptional
        keyAntiquantScaleOptional keyAntiquantOffsetOptional valueAntiquantScaleOptional
        valueAntiquantOffsetOptional keySharedPrefixOptional valueSharedPrefixOptional: Tensor,
        actualSharedPrefixLenOptional: Ints, queryRopeOptional keyRopeOptional
        keyRopeAntiquantScaleOptional: Tensor, numHeads: i64, scaleValue: f64, preTokens nextTokens: i64,
        inputLayout: TextMut, numKeyValueHeads sparseMode innerPrecise blockSize antiquantMode: i64,
        softmaxLseFlag: bool, keyAntiquantMode valueAntiquantMode: i64, attentionOut softmaxLse: Tensor);
    aclnnFusedInferAttentionScoreV4(
        query: Tensor, key value: Tensors, pseShiftOptional attenMaskOptional: Tensor,
        actualSeqLengthsOptional actualSeqLengthsKvOptional: Ints, deqScale1Optional quantScale1Optional
        deqScale2Optional quantScale2Optional quantOffset2Optional antiquantScaleOptional
        antiquantOffsetOptional blockTableOptional queryPaddingSizeOptional kvPaddingSizeOptional
        keyAntiquantScaleOptional keyAntiquantOffsetOptional valueAntiquantScaleOptional
        valueAntiquantOffsetOptional keySharedPrefixOptional valueSharedPrefixOptional: Tensor,
        actualSharedPrefixLenOptional: Ints, queryRopeOptional keyRopeOptional keyRopeAntiquantScaleOptional
        dequantScaleQueryOptional learnableSinkOptional: Tensor, numHeads: i64, scaleValue: f64, preTokens
        nextTokens: i64, inputLayout: TextMut, numKeyValueHeads sparseMode innerPrecise blockSize
        antiquantMode: i64, softmaxLseFlag: bool, keyAntiquantMode valueAntiquantMode queryQuantMode: i64,
        attentionOut softmaxLse: Tensor);
    aclnnFusedInferAttentionScoreV5(
        query: Tensor, key value: Tensors, pseShiftOptional attenMaskOptional: Tensor,
        actualSeqLengthsOptional actualSeqLengthsKvOptional: Ints, deqScale1Optional quantScale1Optional
        deqScale2Optional quantScale2Optional quantOffset2Optional antiquantScaleOptional
        antiquantOffsetOptional blockTableOptional queryPaddingSizeOptional kvPaddingSizeOptional
        keyAntiquantScaleOptional keyAntiquantOffsetOptional valueAntiquantScaleOptional
        valueAntiquantOffsetOptional keySharedPrefixOptional valueSharedPrefixOptional: Tensor,
        actualSharedPrefixLenOptional: Ints, queryRopeOptional keyRopeOptional keyRopeAntiquantScaleOptional
        dequantScaleQueryOptional learnableSinkOptional: Tensor, qStartIdxOptional kvStartIdxOptional: Ints,
        numHeads: i64, scaleValue: f64, preTokens nextTokens: i64, inputLayout: TextMut, numKeyValueHeads
        sparseMode innerPrecise blockSize antiquantMode: i64, softmaxLseFlag: bool, keyAntiquantMode
        valueAntiquantMode queryQuantMode pseType: i64, attentionOut softmaxLse: Tensor);
    aclnnGatherPaKvCache(
        keyCache valueCache blockTables seqLens: Tensor, keyRef valueRef: TensorMut,
        seqOffsetOptional: Tensor, cacheMode: TextMut, isSeqLensCumsum: bool);
    aclnnIncreFlashAttention(
        query: Tensor, key value: Tensors, pseShift attenMask: Tensor, actualSeqLengths: Ints, numHeads: i64,
        scaleValue: f64, inputLayout: TextMut, numKeyValueHeads: i64, attentionOut: Tensor);
    aclnnIncreFlashAttentionV2(
        query: Tensor, key value: Tensors, pseShift attenMask: Tensor, actualSeqLengths: Ints, dequantScale1
        quantScale1 dequantScale2 quantScale2 quantOffset2: Tensor, numHeads: i64, scaleValue: f64,
        inputLayout: TextMut, numKeyValueHeads: i64, attentionOut: Tensor);
    aclnnIncreFlashAttentionV3(
        query: Tensor, key value: Tensors, pseShift attenMask: Tensor, actualSeqLengths: Ints, dequantScale1
        quantScale1 dequantScale2 quantScale2 quantOffset2 antiquantScale antiquantOffset blocktable: Tensor,
        numHeads: i64, scaleValue: f64, inputLayout: TextMut, numKeyValueHeads blockSize innerPrecise: i64,
        attentionOut: Tensor);
    aclnnIncreFlashAttentionV4(
        query: Tensor, key value: Tensors, pseShift attenMask: Tensor, actualSeqLengths: Ints, dequantScale1
        quantScale1 dequantScale2 quantScale2 quantOffset2 antiquantScale antiquantOffset blocktable
        kvPaddingSize: Tensor, numHeads: i64, scaleValue: f64, inputLayout: TextMut, numKeyValueHeads
        blockSize innerPrecise: i64, attentionOut: Tensor);
    aclnnIndexerQuantCache(
        cacheRef cacheScaleRef: TensorMut, x slotMapping: Tensor, quantMode: i64, roundScale: bool,
        xScale: f32);
    aclnnInnerFlashAttn(
        q k v blockTableOptional cuSeqlensQOptional cuSeqlensKvOptional sequsedQOptional sequsedKvOptional
        sinksOptional attnMaskOptional metadataOptional: Tensor, softmaxScale: f64, maskMode winLeft winRight
        maxSeqlenQ maxSeqlenKV: i64, layoutQ layoutKv layoutOut: Text, returnSoftmaxLse: i64, attnOut
        softmaxLse: Tensor);
    aclnnInnerFusedInferAttentionScore(
        query: Tensor, key value: Tensors, pseShift attenMask: Tensor, actualSeqLengths
        actualSeqLengthsKv: Ints, deqScale1 quantScale1 deqScale2 quantScale2 quantOffset2 antiquantScale
        antiquantOffset blockTable queryPaddingSize kvPaddingSize keyAntiquantScale keyAntiquantOffset
        valueAntiquantScale valueAntiquantOffset keySharedPrefix valueSharedPrefix: Tensor,
        actualSharedPrefixLen: Ints, query_rope key_rope keyRopeAntiquantScale dequantScaleQuery
        learnableSink: Tensor, qStartIdxOptional kvStartIdxOptional: Ints, numHeads: i64, scaleValue: f64,
        preTokens nextTokens: i64, inputLayout: TextMut, numKeyValueHeads sparseMode innerPrecise blockSize
        antiquantMode: i64, softmaxLseFlag: bool, keyAntiquantMode valueAntiquantMode queryQuantMode pseType
        outType: i64, attentionOut softmaxLse: Tensor);
    aclnnInnerFusedInferAttentionScoreTensor(
        query: Tensor, key value: Tensors, pseShift attenMask actualSeqLengths actualSeqLengthsKv deqScale1
        quantScale1 deqScale2 quantScale2 quantOffset2 antiquantScale antiquantOffset blockTable
        queryPaddingSize kvPaddingSize keyAntiquantScale keyAntiquantOffset valueAntiquantScale
        valueAntiquantOffset keySharedPrefix valueSharedPrefix actualSharedPrefixLen query_rope key_rope
        keyRopeAntiquantScale dequantScaleQuery learnableSink: Tensor, qStartIdxOptional
        kvStartIdxOptional: Ints, numHeads: i64, scaleValue: f64, preTokens nextTokens: i64,
        inputLayout: TextMut, numKeyValueHeads sparseMode innerPrecise blockSize antiquantMode: i64,
        softmaxLseFlag: bool, keyAntiquantMode valueAntiquantMode queryQuantMode pseType outType: i64,
        attentionOut softmaxLse: Tensor);
    aclnnInplaceAttentionWorkerScheduler(scheduleContextRef: TensorMut);
    aclnnInplaceFusedCausalConv1d(
        x: TensorMut, weight: Tensor, convStates: TensorMut, queryStartLoc cacheIndices initialStateMode bias
        numAcceptedTokens numComputedTokens blockIdxFirstScheduledToken blockIdxLastScheduledToken
        initialStateIdx: Tensor, activationMode padSlotId runMode maxQueryLen residualConnection blockSize
        convMode: i64);
    aclnnInplacePartialRotaryMul(xRef cos sin: Tensor, rotary_mode: i64, partialSlice: Ints);
    aclnnInplacePartialRotaryMulGrad(dyRef: TensorMut, cos sin: Tensor, rotaryMode: i64, partialSlice: Ints);
    aclnnInterleaveRope(x cos sin: Tensor, out: TensorMut);
    aclnnKvCompressEpilog(
        cacheRef: TensorMut, x slotMapping: Tensor, quantGroupSize quantMode: i64, roundScale: bool,
        xScale: f32);
    aclnnKvRmsNormRopeCache(
        kv gamma cos sin index: Tensor, kCacheRef ckvCacheRef: TensorMut, kRopeScaleOptional cKvScaleOptional
        kRopeOffsetOptional cKvOffsetOptional: Tensor, epsilon: f64, cacheModeOptional: TextMut,
        isOutputKv: bool, kRopeOut cKvOut: Tensor);
    aclnnKvRmsNormRopeCacheV2(
        kv gamma cos sin index: Tensor, kCacheRef ckvCacheRef: TensorMut, kRopeScaleOptional cKvScaleOptional
        kRopeOffsetOptional cKvOffsetOptional vOptional: Tensor, epsilon: f64, cacheModeOptional: TextMut,
        isOutputKv: bool, kRopeOut cKvOut: Tensor);
    aclnnLightningIndexer(
        query key weights actualSeqLengthsQueryOptional actualSeqLengthsKeyOptional
        blockTableOptional: Tensor, layoutQueryOptional layoutKeyOptional: TextMut, sparseCount sparseMode
        preTokens nextTokens: i64, returnValues: bool, sparseIndicesOut sparseValuesOut: Tensor);
    aclnnLightningIndexerGrad(
        query key dy sparseIndices weights actualSeqQLenOptional actualSeqKvLenOptional: Tensor, headNum: i64,
        inputLayout: TextMut, sparseMode preTokens nextTokens: i64, determinstic: bool, dqOut dkOut
        dweightsOut: Tensor);
    aclnnLightningIndexerV2(
        q k w cuSeqlensQOptional cuSeqlensKOptional sequsedQOptional sequsedKOptional cmpResidualKOptional
        blockTableOptional outputIdxOffsetOptional metadataOptional: Tensor, topk maxSeqlenQ: i64, layoutQ
        layoutK: TextMut, maskMode cmpRatio returnValue: i64, sparseIndices sparseValues: Tensor);
    aclnnLightningIndexerV2Metadata(
        cuSeqlensQOptional cuSeqlensKOptional sequsedQOptional sequsedKOptional cmpResidualKOptional: Tensor,
        numHeadsQ numHeadsK headDim topk batchSize maxSeqlenQ maxSeqlenK: i64, layoutQOptional
        layoutKOptional: TextMut, maskMode cmpRatio: i64, metaData: Tensor);
    aclnnMaskedCausalConv1dBackward(gradY x weight maskOptional gradXOut gradWeightOut: Tensor);
    aclnnMaskedCausalConv1d(x weight maskOptional out: Tensor);
    aclnnMixedQuantSparseFlashMla(
        q oriKvOptional cmpKvOptional oriSparseIndicesOptional cmpSparseIndicesOptional oriBlockTableOptional
        cmpBlockTableOptional cuSeqlensQOptional cuSeqlensOriKvOptional cuSeqlensCmpKvOptional
        sequsedQOptional sequsedOriKvOptional sequsedCmpKvOptional cmpResidualKvOptional oriTopkLengthOptional
        cmpTopkLengthOptional sinksOptional metadataOptional: Tensor, quantMode ropeHeadDim: i64,
        softmaxScale: f64, cmpRatio oriMaskMode cmpMaskMode oriWinLeft oriWinRight: i64, layoutQOptional
        layoutKvOptional: TextMut, topkValueMode: i64, returnSoftmaxLse: bool, attnOutOut
        softmaxLseOutOptional: Tensor);
    aclnnMixedQuantSparseFlashMlaMetadata(
        cuSeqlensQOptional cuSeqlensOriKvOptional cuSeqlensCmpKvOptional sequsedQOptional sequsedOriKvOptional
        sequsedCmpKvOptional cmpResidualKvOptional oriTopkLengthOptional cmpTopkLengthOptional: Tensor,
        numHeadsQ numHeadsKv headDim quantMode batchSize maxSeqlenQ maxSeqlenOriKv maxSeqlenCmpKv oriTopk
        cmpTopk ropeHeadDim cmpRatio oriMaskMode cmpMaskMode oriWinLeft oriWinRight: i64, layoutQOptional
        layoutKvOptional: Text, hasOriKv hasCmpKv: bool, metaData: Tensor);
    aclnnMlaPreprocess(
        input gamma0 beta0 quantScale0 quantOffset0 wdqkv deScale0 bias0 gamma1 beta1 quantScale1 quantOffset1
        wuq deScale1 bias1 gamma2 cos sin wuk kvCache kvCacheRope slotMapping ctkvScale qNopeScale: Tensor,
        wdqDim qRopeDim kRopeDim: i64, epsilon: f64, qRotaryCoeff kRotaryCoeff: i64, transposeWdq transposeWuq
        transposeWuk: bool, cacheMode quantMode: i64, doRmsNorm: bool, wdkvSplitCount: i64, qOut kvCacheOut
        qRopeOut krCacheOut: TensorMut);
    aclnnMlaPreprocessV2(
        input gamma0 beta0 quantScale0 quantOffset0 wdqkv deScale0 bias0 gamma1 beta1 quantScale1 quantOffset1
        wuq deScale1 bias1 gamma2 cos sin wuk kvCache kvCacheRope slotMapping ctkvScale qNopeScale: Tensor,
        wdqDim qRopeDim kRopeDim: i64, epsilon: f64, qRotaryCoeff kRotaryCoeff: i64, transposeWdq transposeWuq
        transposeWuk: bool, cacheMode quantMode: i64, doRmsNorm: bool, wdkvSplitCount: i64,
        qDownOutFlag: bool, qOut kvCacheOut qRopeOut krCacheOut qDownOut: TensorMut);
    aclnnMlaProlog(
        tokenX weightDq weightUqQr weightUk weightDkvKr rmsnormGammaCq rmsnormGammaCkv ropeSin ropeCos
        cacheIndex: Tensor, kvCacheRef krCacheRef: TensorMut, dequantScaleXOptional dequantScaleWDqOptional
        dequantScaleWUqQrOptional dequantScaleWDkvKrOptional quantScaleCkvOptional quantScaleCkrOptional
        smoothScalesCqOptional: Tensor, rmsnormEpsilonCq rmsnormEpsilonCkv: f64, cacheModeOptional: TextMut,
        queryOut queryRopeOut: Tensor);
    aclnnMlaPrologV2, aclnnMlaPrologV2WeightNz(
        tokenX weightDq weightUqQr weightUk weightDkvKr rmsnormGammaCq rmsnormGammaCkv ropeSin ropeCos
        cacheIndex: Tensor, kvCacheRef krCacheRef: TensorMut, dequantScaleXOptional dequantScaleWDqOptional
        dequantScaleWUqQrOptional dequantScaleWDkvKrOptional quantScaleCkvOptional quantScaleCkrOptional
        smoothScalesCqOptional: Tensor, rmsnormEpsilonCq rmsnormEpsilonCkv: f64, cacheModeOptional: TextMut,
        queryOut queryRopeOut dequantScaleQNopeOutOptional: Tensor);
    aclnnMlaPrologV3(
        tokenX weightDq weightUqQr weightUk weightDkvKr rmsnormGammaCq rmsnormGammaCkv ropeSin
        ropeCos: Tensor, kvCacheRef krCacheRef: TensorMut, cacheIndexOptional dequantScaleXOptional
        dequantScaleWDqOptional dequantScaleWUqQrOptional dequantScaleWDkvKrOptional quantScaleCkvOptional
        quantScaleCkrOptional smoothScalesCqOptional actualSeqLenOptional kNopeClipAlphaOptional: Tensor,
        rmsnormEpsilonCq rmsnormEpsilonCkv: f64, cacheModeOptional: TextMut, queryNormFlag: bool,
        weightQuantMode kvCacheQuantMode queryQuantMode ckvkrRepoMode quantScaleRepoMode tileSize: i64,
        qcQrScale kcScale: f64, queryOut queryRopeOut dequantScaleQNopeOut queryNormOut
        dequantScaleQNormOut: Tensor);
    aclnnMlaPrologV3WeightNz(
        tokenX weightDq weightUqQr weightUk weightDkvKr rmsnormGammaCq rmsnormGammaCkv ropeSin
        ropeCos: Tensor, kvCacheRef krCacheRef: TensorMut, cacheIndexOptional dequantScaleXOptional
        dequantScaleWDqOptional dequantScaleWUqQrOptional dequantScaleWDkvKrOptional quantScaleCkvOptional
        quantScaleCkrOptional smoothScalesCqOptional actualSeqLenOptional kNopeClipAlphaOptional: Tensor,
        rmsnormEpsilonCq rmsnormEpsilonCkv: f64, cacheModeOptional: TextMut, weightQuantMode kvCacheQuantMode
        queryQuantMode ckvkrRepoMode quantScaleRepoMode tileSize: i64, qcQrScale kcScale: f64, queryOut
        queryRopeOut dequantScaleQNopeOutOptional queryNormOutOptional dequantScaleQNormOutOptional: Tensor);
    aclnnNormRopeConcatBackward(
        gradQueryOutput gradKeyOutput gradValueOutput query key encoderQuery encoderKey normQueryWeight
        normQueryMean normQueryRstd normKeyWeight normKeyMean normKeyRstd normAddedQueryWeight
        normAddedQueryMean normAddedQueryRstd normAddedKeyWeight normAddedKeyMean normAddedKeyRstd ropeSin
        ropeCos: Tensor, normType normAddedType ropeType concatOrder: i64, gradQuery gradKey gradValue
        gradEncoderQuery gradEncoderKey gradEncoderValue gradNormQueryWeight gradNormQueryBias
        gradNormKeyWeight gradNormKeyBias gradNormAddedQueryWeight gradNormAddedQueryBias
        gradNormAddedKeyWeight gradNormAddedKeyBias: Tensor);
    aclnnNormRopeConcat(
        query key value encoderQuery encoderKey encoderValue normQueryWeight normQueryBias normKeyWeight
        normKeyBias normAddedQueryWeight normAddedQueryBias normAddedKeyWeight normAddedKeyBias ropeSin
        ropeCos: Tensor, normType normAddedType ropeType concatOrder: i64, eps: f64, isTraining: bool,
        queryOutput keyOutput valueOutput normQueryMean normQueryRstd normKeyMean normKeyRstd
        normAddedQueryMean normAddedQueryRstd normAddedKeyMean normAddedKeyRstd: Tensor);
    aclnnNsaCompressAttention(
        query key value attenMaskOptional topkMaskOptional: Tensor, actualSeqQLenOptional
        actualCmpSeqKvLenOptional actualSelSeqKvLenOptional: Ints, scaleValue: f64, headNum: i64,
        inputLayout: TextMut, sparseMode compressBlockSize compressStride selectBlockSize
        selectBlockCount: i64, softmaxMaxOut softmaxSumOut attentionOutOut topkIndicesOut: Tensor);
    aclnnNsaCompressAttentionInfer(
        query key value attentionMaskOptional blockTableOptional: Tensor, actualQSeqLenOptional
        actualCmpKvSeqLenOptional actualSelKvSeqLenOptional: Ints, topKMaskOptional: Tensor, numHeads
        numKeyValueHeads selectBlockSize selectBlockCount compressBlockSize compressBlockStride: i64,
        scaleValue: f64, layoutOptional: TextMut, pageBlockSize sparseMode: i64, output topKOutput: Tensor);
    aclnnNsaCompress(
        input weight: Tensor, actSeqLenOptional: Ints, layoutOptional: TextMut, compressBlockSize
        compressStride actSeqLenType: i64, output: TensorMut);
    aclnnNsaCompressGrad(
        outputGrad input weight: Tensor, actSeqLenOptionalOptional: Ints, compressBlockSize compressStride
        actSeqLenType: i64, layoutOptionalOptional: TextMut, inputGradOut weightGradOut: Tensor);
    aclnnNsaCompressWithCache(
        input weight slotMapping: Tensor, actSeqLenOptional: Ints, blockTableOptional: Tensor,
        layoutOptional: TextMut, compressBlockSize compressStride actSeqLenType pageBlockSize: i64,
        outputCache: TensorMut);
    aclnnNsaSelectedAttention(
        query key value topkIndices attenMaskOptional: Tensor, actualSeqQLenOptional
        actualSeqKvLenOptional: Ints, scaleValue: f64, headNum: i64, inputLayout: TextMut, sparseMode
        selectedBlockSize selectedBlockCount: i64, softmaxMaxOut softmaxSumOut attentionOut: Tensor);
    aclnnNsaSelectedAttentionGrad(
        query key value attentionOut attentionOutGrad softmaxMax softmaxSum topkIndices: Tensor,
        actualSeqQLenOptional actualSeqKvLenOptional: Ints, attenMaskOptional: Tensor, scaleValue: f64,
        selectedBlockSize selectedBlockCount headNum: i64, inputLayout: TextMut, sparseMode: i64, dqOut dkOut
        dvOut: Tensor);
    aclnnNsaSelectedAttentionInfer(
        query key value topkIndices attenMaskOptional blockTableOptional: Tensor, actualQSeqLenOptional
        actualKvSeqLenOptional: Ints, layoutOptional: TextMut, numHeads numKeyValueHeads selectBlockSize
        selectBlockCount pageBlockSize: i64, scaleValue: f64, sparseMode: i64, output: TensorMut);
    aclnnPromptFlashAttention(
        query key value pseShift attenMask: Tensor, actualSeqLengths: Ints, numHeads: i64, scaleValue: f64,
        preTokens nextTokens: i64, inputLayout: TextMut, numKeyValueHeads: i64, attentionOut: Tensor);
    aclnnPromptFlashAttentionV2(
        query key value pseShift attenMask: Tensor, actualSeqLengths actualSeqLengthsKv: Ints, deqScale1
        quantScale1 deqScale2 quantScale2 quantOffset2: Tensor, numHeads: i64, scaleValue: f64, preTokens
        nextTokens: i64, inputLayout: TextMut, numKeyValueHeads sparseMode: i64, attentionOut: Tensor);
    aclnnPromptFlashAttentionV3(
        query key value pseShift attenMask: Tensor, actualSeqLengths actualSeqLengthsKv: Ints, deqScale1
        quantScale1 deqScale2 quantScale2 quantOffset2: Tensor, numHeads: i64, scaleValue: f64, preTokens
        nextTokens: i64, inputLayout: TextMut, numKeyValueHeads sparseMode innerPrecise: i64,
        attentionOut: Tensor);
    aclnnQkvRmsNormRopeCache(
        qkv qGamma kGamma cos sin index: Tensor, qOut kCache vCache: TensorMut, kScaleOptional vScaleOptional
        kOffsetOptional vOffsetOptional: Tensor, qkvSize headNums: Ints, epsilon: f64,
        cacheModeOptional: TextMut, qOutBeforeQuant kOutBeforeQuant vOutBeforeQuant: Tensor);
    aclnnQkvRmsNormRopeCacheWithKScale(
        qkv qGamma kGamma cosSin slotMapping: Tensor, kCacheRef vCacheRef kScaleCacheRef: TensorMut,
        queryStartLoc seqLens rotationOptional vScaleOptional: Tensor, headNums: Ints, layoutQkv
        layoutQOut: Text, epsilon: f32, qOut qScale: TensorMut);
    aclnnQuantFlashAttentionScore(
        query key value attenMaskOptional dScaleQ dScaleK dScaleV pScale: Tensor, scaleValue: f64, preTokens
        nextTokens headNum: i64, inputLayout: TextMut, sparseMode: i64, softmaxMaxOut softmaxSumOut
        softmaxOutout attentionOutOut: TensorMut);
    aclnnQuantLightningIndexer(
        query key weights queryDequantScale keyDequantScale actualSeqLengthsQueryOptional
        actualSeqLengthsKeyOptional blockTableOptional: Tensor, queryQuantMode keyQuantMode: i64,
        layoutQueryOptional layoutKeyOptional: TextMut, sparseCount sparseMode preTokens nextTokens: i64,
        out: Tensor);
    aclnnQuantLightningIndexerV2Metadata(
        cuSeqlensQOptional cuSeqlensKOptional sequsedQOptional sequsedKOptional cmpResidualKOptional: Tensor,
        numHeadsQ numHeadsK headDim topk quantMode batchSize maxSeqlenQ maxSeqlenK: i64, layoutQOptional
        layoutKOptional: TextMut, maskMode cmpRatio: i64, metadata: Tensor);
    aclnnRainFusionAttention(
        query key value selectIdx selectNumIdx: Tensor, blockShape: Ints, attenMaskOptional: Tensor,
        actualSeqLengthsOptional actualSeqLengthsKvOptional: Ints, blockTableOptional: Tensor, qInputLayout
        kvInputLayout: TextMut, numKeyValueHeads maskType: i64, scaleValue: f64, innerPrecise blockSize: i64,
        attentionOut softmaxLseOptional: Tensor);
    aclnnRecurrentGatedDeltaRule(
        query key value beta: Tensor, stateRef: TensorMut, actualSeqLengths ssmStateIndices g gk
        numAcceptedTokens: Tensor, scaleValue: f32, out: TensorMut);
    aclnnRingAttentionUpdate(
        prevAttnOut prevSoftmaxMax prevSoftmaxSum curAttnOut curSoftmaxMax curSoftmaxSum
        actualSeqQlenOptional: Tensor, inputLayoutOptional: TextMut, attnOutOut softmaxMaxOut
        softmaxSumOut: Tensor);
    aclnnRingAttentionUpdateV2(
        prevAttnOut prevSoftmaxMax prevSoftmaxSum curAttnOut curSoftmaxMax curSoftmaxSum
        actualSeqQlenOptional: Tensor, inputLayoutOptional inputSoftmaxLayoutOptional: TextMut, attnOutOut
        softmaxMaxOut softmaxSumOut: Tensor);
    aclnnRopeWithSinCosCache(
        positions queryIn keyIn cosSinCache: Tensor, mropeSection: Ints, headSize: i64, isNeoxStyle: bool,
        queryOut keyOut: TensorMut);
    aclnnRopeWithSinCosCacheV2(
        positions queryIn keyIn cosSinCache: Tensor, mropeSection: Ints, headSize: i64, isNeoxStyle: bool,
        cacheMode: i64, queryOut keyOut: TensorMut);
    aclnnRotaryPositionEmbedding(x cos sin: Tensor, mode: i64, out: TensorMut);
    aclnnRotaryPositionEmbeddingGrad(dy cos sin xOptional: Tensor, mode: i64, dxOut dcosOut dsinOut: Tensor);
    aclnnRotaryPositionEmbeddingV2(x cos sin: Tensor, mode: i64, rotate: Tensor, out: TensorMut);
    aclnnScatterPaCache(
        key: Tensor, keyCacheRef: TensorMut, slotMapping compressLensOptional compressSeqOffsetOptional
        seqLensOptional: Tensor, cacheMode: TextMut);
    aclnnScatterPaKvCache(
        key: Tensor, keyCacheRef: TensorMut, slotMapping value: Tensor, valueCacheRef: TensorMut,
        compressLensOptional compressSeqOffsetOptional seqLensOptional: Tensor, cacheModeOptional
        scatterModeOptional: TextMut, stridesOptional offsetsOptional: Ints);
    aclnnScatterPaKvCacheWithKScale(
        key value: Tensor, keyCacheRef valueCacheRef: TensorMut, slotMapping: Tensor, keyScale
        keyScaleCacheRef: TensorMut, cacheLayoutOptional: TextMut);
    aclnnSparseFlashAttention(
        query key value sparseIndices blockTableOptional actualSeqLengthsQueryOptional
        actualSeqLengthsKvOptional queryRopeOptional keyRopeOptional: Tensor, scaleValue: f64,
        sparseBlockSizeOptional: i64, layoutQueryOptional layoutKvOptional: TextMut, sparseMode preTokens
        nextTokens attentionMode: i64, returnSoftmaxLse: bool, attentionOut softmaxMax softmaxSum: Tensor);
    aclnnSparseFlashAttentionGrad(
        query key value sparseIndices dOut out softmaxMax softmaxSum actualSeqLengthsQueryOptional
        actualSeqLengthskvOptional queryRopeOptional keyRopeOptional: Tensor, scaleValue: f64,
        sparseBlockSize: i64, layoutOptional: TextMut, sparseMode preTokens nextTokens: i64,
        deterministic: bool, dQueryOut dKeyOut dValueOut dQueryRopeOutOptional dKeyRopeOutOptional: Tensor);
    aclnnSparseFlashAttentionV2(
        query key value sparseIndices blockTableOptional actualSeqLengthsQueryOptional
        actualSeqLengthsKvOptional queryRopeOptional keyRopeOptional sinksOptional: Tensor, scaleValue: f64,
        sparseBlockSizeOptional: i64, layoutQueryOptional layoutKvOptional: TextMut, sparseMode preTokens
        nextTokens attentionMode: i64, returnSoftmaxLse: bool, attentionOut softmaxMax softmaxSum: Tensor);
    aclnnSparseFlashMla(
        q oriKvOptional cmpKvOptional oriSparseIndicesOptional cmpSparseIndicesOptional oriBlockTableOptional
        cmpBlockTableOptional cuSeqlensQOptional cuSeqlensOriKvOptional cuSeqlensCmpKvOptional
        sequsedQOptional sequsedOriKvOptional sequsedCmpKvOptional cmpResidualKvOptional oriTopkLengthOptional
        cmpTopkLengthOptional sinksOptional metadataOptional: Tensor, softmaxScale: f64, cmpRatio oriMaskMode
        cmpMaskMode oriWinLeft oriWinRight: i64, layoutQOptional layoutKvOptional: TextMut,
        topkValueMode: i64, returnSoftmaxLse: bool, attnOutOut softmaxLseOutOptional: Tensor);
    aclnnSparseFlashMlaGrad(
        query dOut out lse oriKvOptional cmpKvOptional oriSparseIndicesOptional cmpSparseIndicesOptional
        cuSeqlensQOptional cuSeqlensOriKvOptional cuSeqlensCmpKvOptional sequsedQOptional sequsedOriKvOptional
        sequsedCmpKvOptional cmpResidualKvOptional oriTopkLengthOptional cmpTopkLengthOptional sinksOptional
        metadataOptional: Tensor, scaleValue: f64, cmpRatio oriMaskMode cmpMaskMode oriWinLeft
        oriWinRight: i64, layoutQOptional layoutKvOptional: TextMut, dQueryOut dOriKvOutOptional
        dCmpKvOutOptional dSinksOutOptional oriSoftmaxL1NormOptional cmpSoftmaxL1NormOptional: Tensor);
    aclnnSparseFlashMlaGradMetadata, aclnnSparseFlashMlaMetadata(
        cuSeqlensQOptional cuSeqlensOriKvOptional cuSeqlensCmpKvOptional sequsedQOptional sequsedOriKvOptional
        sequsedCmpKvOptional cmpResidualKvOptional oriTopkLengthOptional cmpTopkLengthOptional: Tensor,
        numHeadsQ numHeadsKv headDim batchSize maxSeqlenQ maxSeqlenOriKv maxSeqlenCmpKv oriTopk cmpTopk
        cmpRatio oriMaskMode cmpMaskMode oriWinLeft oriWinRight: i64, layoutQOptional layoutKvOptional: Text,
        hasOriKv hasCmpKv: bool, metaData: Tensor);
    aclnnSparseLightningIndexerGradKLLoss(
        query key queryIndex keyIndex weights sparseIndices softmaxMax softmaxSum queryRope keyRope: Tensor,
        actualSeqLengthsQuery actualSeqLengthsKey: Ints, scaleValue: f64, layout: TextMut, sparseMode
        pre_tokens next_tokens: i64, deterministic: bool, dQueryIndex dKeyIndex dWeights loss: Tensor);
    aclnnSparseLightningIndexerKLLossGrad(
        q k w sparseIndices attnSoftmaxL1Norm cuSeqLensQOptional cuSeqLensKOptional seqUsedQOptional
        seqUsedKOptional cmpResidualKOptional metadataOptional: Tensor, layoutQ layoutK: TextMut, maskMode
        cmpRatio: i64, dq dk dw softmaxOut: Tensor);
    aclnnSparseLightningIndexerKLLossGradMetadata(
        cuSeqLensQOptional cuSeqLensKOptional seqUsedQOptional seqUsedKOptional cmpResidualKOptional: Tensor,
        batchSize maxSeqLenQ maxSeqLenK numHeadsQ numHeadsK headDim topk: i64, layoutQ layoutK: TextMut,
        maskMode cmpRatio: i64, metadata: Tensor);
    aclnnSwinAttentionScoreQuant(
        query key value scaleQuant scaleDequant1 scaleDequant2 biasQuantOptional biasDequant1Optional
        biasDequant2Optional paddingMask1Optional paddingMask2Optional: Tensor, queryTranspose keyTranspose
        valueTranspose: bool, softmaxAxes: i64, out: Tensor);
    aclnnSwinTransformerLnQkvQuant(
        x gamma beta weight bias quantScale quantOffset dequantScale: Tensor, headNum seqLength: i64,
        epsilon: f64, oriHeight oriWeight hWinSize wWinSize: i64, weightTranspose: bool, queryOutputOut
        keyOutputOut valueOutputOut: Tensor);
}
