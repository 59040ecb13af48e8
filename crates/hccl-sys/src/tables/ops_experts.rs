//! libopapi_transformer.so (9.x), libopapi.so: experts, their exchanges, products fused with communication.

use crate::types::*;

operators! {
    /// libopapi_transformer.so (9.x), libopapi.so: experts, their exchanges, products fused with
    /// communication.
    OpsExperts
    aclnnAllGatherAdd(a b: Tensor, group: TextMut, rankSize: i64, cOut gatherOutOut: Tensor);
    aclnnAllGatherMatmul
        (x1 x2 bias: Tensor, group: Text, gatherIndex commTurn streamMode: i64, output gatherOut: Tensor);
    aclnnAllGatherMatmulV2(
        x1 x2 bias x1Scale x2Scale quantScale: Tensor, blockSize: i64, group: Text, gatherIndex commTurn
        streamMode groupSize: i64, commMode: Text, output gatherOut amaxOut: TensorMut);
    aclnnAlltoAllAllGatherBatchMatMul(
        x weight biasOptional: Tensor, groupEp groupTp: Text, epWorldSize tpWorldSize xShardType actType: i64,
        y1Out y2OutOptional y3OutOptional: TensorMut);
    aclnnAlltoAllMatmul(
        x1 x2 biasOptional: Tensor, alltoAllAxesOptional: Ints, group: Text, transposeX1 transposeX2: bool,
        output alltoAllOutOptional: Tensor);
    aclnnAlltoAllMatmulV2(
        x1 x2 biasOptional: Tensor, alltoAllAxesOptional: Ints, group commMode: Text, transposeX1
        transposeX2: bool, output alltoAllOutOptional: Tensor);
    aclnnAlltoAllQuantMatmul(
        x1 x2 biasOptional x1ScaleOptional x2Scale commScaleOptional x1OffsetOptional
        x2OffsetOptional: Tensor, group: Text, alltoAllAxesOptional: Ints, x1QuantMode x2QuantMode
        commQuantMode commQuantDtype x1QuantDtype groupSize: i64, transposeX1 transposeX2: bool, output
        alltoAllOutOptional: Tensor);
    aclnnAlltoAllQuantMatmulV2(
        x1 x2 biasOptional x1ScaleOptional x2Scale commScaleOptional x1OffsetOptional
        x2OffsetOptional: Tensor, group commMode: Text, alltoAllAxesOptional: Ints, x1QuantMode x2QuantMode
        commQuantMode commQuantDtype x1QuantDtype groupSize: i64, transposeX1 transposeX2: bool, output
        alltoAllOutOptional: Tensor);
    aclnnAlltoAllvGroupedMatMul(
        gmmX gmmWeight sendCountsTensorOptional recvCountsTensorOptional mmXOptional mmWeightOptional: Tensor,
        group: Text, epWorldSize: i64, sendCounts recvCounts: Ints, transGmmWeight transMmWeight
        permuteOutFlag: bool, gmmY mmYOptional permuteOutOptional: TensorMut);
    aclnnAlltoAllvGroupedMatMulV2(
        gmmX gmmWeight sendCountsTensorOptional recvCountsTensorOptional mmXOptional mmWeightOptional: Tensor,
        group commMode: Text, epWorldSize: i64, sendCounts recvCounts: Ints, transGmmWeight transMmWeight
        permuteOutFlag: bool, gmmY mmYOptional permuteOutOptional: TensorMut);
    aclnnAlltoAllvQuantGroupedMatMul(
        gmmX gmmWeight gmmXScale gmmWeightScale sendCountsTensorOptional recvCountsTensorOptional mmXOptional
        mmWeightOptional mmXScaleOptional mmWeightScaleOptional: Tensor, gmmXQuantMode gmmWeightQuantMode
        mmXQuantMode mmWeightQuantMode: i64, group: Text, epWorldSize: i64, sendCounts recvCounts: Ints,
        transGmmWeight transMmWeight: bool, groupSize: i64, permuteOutFlag: bool, gmmY mmYOptional
        permuteOutOptional: TensorMut);
    aclnnAlltoAllvQuantGroupedMatMulV2(
        gmmX gmmWeight gmmXScale gmmWeightScale sendCountsTensorOptional recvCountsTensorOptional mmXOptional
        mmWeightOptional mmXScaleOptional mmWeightScaleOptional: Tensor, gmmXQuantMode gmmWeightQuantMode
        mmXQuantMode mmWeightQuantMode: i64, group commMode: Text, epWorldSize: i64, sendCounts
        recvCounts: Ints, transGmmWeight transMmWeight: bool, groupSize: i64, permuteOutFlag: bool, gmmY
        mmYOptional permuteOutOptional: TensorMut);
    aclnnAttentionToFFN(
        x sessionId microBatchId layerId expertIds expertRankTable scales activeMask: Tensor, group: Text,
        worldSize: i64, ffnTokenInfoTableShape ffnTokenDataShape attnTokenInfoTableShape: Ints, moeExpertNum
        quantMode syncFlag ffnStartRankId: i64);
    aclnnAttentionWorkerCombine(
        scheduleContext expertScales layerId: Tensor, hiddenSize tokenDtype needSchedule: i64, y
        nextLayerId: Tensor);
    aclnnBandwidthTest(
        x dstRankId: Tensor, group: TextMut, worldSize maxBs mode: i64, commAlg: TextMut, aivNum: i64, y
        receiveCnt: TensorMut);
    aclnnBatchMatMulReduceScatterAlltoAll(
        x weight biasOptional: Tensor, groupEp groupTp: Text, epWorldSize tpWorldSize yShardType: i64,
        out: TensorMut);
    aclnnDistributeBarrier(xRef: TensorMut, group: Text, worldSize: i64);
    aclnnDistributeBarrierV2(xRef timeOut elasticInfo: Tensor, group: Text, worldSize: i64);
    aclnnFFN(
        x weight1 weight2: Tensor, expertTokens: Ints, bias1 bias2 scale offset deqScale1 deqScale2
        antiquantScale1 antiquantScale2 antiquantOffset1 antiquantOffset2: Tensor, activation: Text,
        innerPrecise: i64, y: Tensor);
    aclnnFFNToAttention(
        x sessionIds microBatchIds tokenIds expertOffsets actualTokenNum attnRankTable: Tensor, group: Text,
        worldSize: i64, tokenInfoTableShape tokenDataShape: Ints);
    aclnnFFNV2(
        x weight1 weight2: Tensor, expertTokens: Ints, bias1 bias2 scale offset deqScale1 deqScale2
        antiquantScale1 antiquantScale2 antiquantOffset1 antiquantOffset2: Tensor, activation: Text,
        innerPrecise: i64, tokensIndexFlag: bool, y: Tensor);
    aclnnFFNV3(
        x weight1 weight2 expertTokensOptional bias1Optional bias2Optional scaleOptional offsetOptional
        deqScale1Optional deqScale2Optional antiquantScale1Optional antiquantScale2Optional
        antiquantOffset1Optional antiquantOffset2Optional: Tensor, activation: Text, innerPrecise: i64,
        tokensIndexFlag: bool, y: Tensor);
    aclnnFfnWorkerBatching(
        scheduleContext: Tensor, expertNum: i64, maxOutShape: Ints, tokenDtype needSchedule layerNum: i64, y
        groupList sessionIds microBatchIds tokenIds expertOffsets dynamicScale actualTokenNum: Tensor);
    aclnnGroupedMatMulAllReduce(
        x weight bias: Tensors, groupListOptional: Ints, splitItem: i64, group reduceOp: Text, commTurn
        streamMode: i64, y: Tensors);
    aclnnGroupedMatMulAlltoAllv(
        gmmX gmmWeight sendCountsTensorOptional recvCountsTensorOptional mmXOptional mmWeightOptional: Tensor,
        group: Text, epWorldSize: i64, sendCounts recvCounts: Ints, transGmmWeight transMmWeight: bool, y
        mmYOptional: TensorMut);
    aclnnGroupedMatMulAlltoAllvV2(
        gmmX gmmWeight sendCountsTensorOptional recvCountsTensorOptional mmXOptional mmWeightOptional: Tensor,
        group commMode: Text, epWorldSize: i64, sendCounts recvCounts: Ints, transGmmWeight
        transMmWeight: bool, y mmYOptional: TensorMut);
    aclnnGroupedMatmulActivationQuantWeightNz(
        x groupList: Tensor, weight weightScale bias: Tensors, xScaleOptional: Tensor, activationType: Text,
        groupListType: i64, tuningConfig: Ints, quantMode roundMode: Text, scaleAlg: i64, dstTypeMax: f32, y
        yScale: TensorMut);
    aclnnGroupedMatmulAdd
        (x weight groupList: Tensor, yRef: TensorMut, transposeX transposeWeight: bool, groupType: i64);
    aclnnGroupedMatmulAddV2(
        x weight groupList: Tensor, yRef: TensorMut, transposeX transposeWeight: bool, groupType
        groupListType: i64);
    aclnnGroupedMatmulFinalizeRouting(
        x: Tensor, w: TensorMut, scaleOptional biasOptional pertokenScaleOptional groupListOptional
        sharedInputOptional logitOptional rowIndexOptional: Tensor, dtype: i64, sharedInputWeight: f32,
        sharedInputOffset: i64, transposeX transposeW: bool, groupListType: i64, y: TensorMut);
    aclnnGroupedMatmulFinalizeRoutingV2(
        x1: Tensor, x2: TensorMut, scaleOptional biasOptional offsetOptional antiquantScaleOptional
        antiquantOffsetOptional pertokenScaleOptional groupListOptional sharedInputOptional logitOptional
        rowIndexOptional: Tensor, dtype: i64, sharedInputWeight: f32, sharedInputOffset: i64, transposeX1
        transposeX2: bool, groupListType: i64, out: TensorMut);
    aclnnGroupedMatmulFinalizeRoutingV3(
        x1: Tensor, x2: TensorMut, scaleOptional biasOptional offsetOptional antiquantScaleOptional
        antiquantOffsetOptional pertokenScaleOptional groupListOptional sharedInputOptional logitOptional
        rowIndexOptional: Tensor, dtype: i64, sharedInputWeight: f32, sharedInputOffset: i64, transposeX1
        transposeX2: bool, groupListType: i64, tuningConfigOptional: Ints, out: TensorMut);
    aclnnGroupedMatmulFinalizeRoutingWeightNz(
        x w scaleOptional biasOptional pertokenScaleOptional groupListOptional sharedInputOptional
        logitOptional rowIndexOptional: Tensor, dtype: i64, sharedInputWeight: f32, sharedInputOffset: i64,
        transposeX transposeW: bool, groupListType: i64, y: TensorMut);
    aclnnGroupedMatmulFinalizeRoutingWeightNzV2(
        x1 x2 scale bias offsetOptional antiquantScaleOptional antiquantOffsetOptional pertokenScaleOptional
        groupList sharedInput logit rowIndex: Tensor, dtype: i64, sharedInputWeight: f32,
        sharedInputOffset: i64, transposeX1 transposeX2: bool, groupListType: i64, tuningConfigOptional: Ints,
        out: TensorMut);
    aclnnGroupedMatmul(
        x weight biasOptional scaleOptional offsetOptional antiquantScaleOptional
        antiquantOffsetOptional: Tensors, groupListOptional: Ints, splitItem: i64, y: Tensors);
    aclnnGroupedMatmulSwigluQuant, aclnnGroupedMatmulSwigluQuantWeightNZ(
        x weight bias offset weightScale xScale groupList: Tensor, output outputScale
        outputOffset: TensorMut);
    aclnnGroupedMatmulSwigluQuantV2, aclnnGroupedMatmulSwigluQuantWeightNzV2(
        x: Tensor, weight weightScale weightAssistMatrix: Tensors, bias xScale smoothScale groupList: Tensor,
        dequantMode dequantDtype quantMode groupListType: i64, tuningConfigOptional: Ints, output
        outputScale: TensorMut);
    aclnnGroupedMatmulV2(
        x weight biasOptional scaleOptional offsetOptional antiquantScaleOptional
        antiquantOffsetOptional: Tensors, groupListOptional: Ints, splitItem groupType: i64, y: Tensors);
    aclnnGroupedMatmulV3(
        x weight biasOptional scaleOptional offsetOptional antiquantScaleOptional
        antiquantOffsetOptional: Tensors, groupListOptional: Tensor, splitItem groupType: i64, y: Tensors);
    aclnnGroupedMatmulV4(
        x weight biasOptional scaleOptional offsetOptional antiquantScaleOptional antiquantOffsetOptional
        perTokenScaleOptional: Tensors, groupListOptional: Tensor, activationInputOptional
        activationQuantScaleOptional activationQuantOffsetOptional: Tensors, splitItem groupType groupListType
        actType: i64, out activationFeatureOutOptional dynQuantScaleOutOptional: TensorsMut);
    aclnnGroupedMatmulV5(
        x weight biasOptional scaleOptional offsetOptional antiquantScaleOptional antiquantOffsetOptional
        perTokenScaleOptional: Tensors, groupListOptional: Tensor, activationInputOptional
        activationQuantScaleOptional activationQuantOffsetOptional: Tensors, splitItem groupType groupListType
        actType: i64, tuningConfigOptional: IntsMut, out activationFeatureOutOptional
        dynQuantScaleOutOptional: TensorsMut);
    aclnnGroupedMatmulWeightNz(
        x weight biasOptional scaleOptional offsetOptional antiquantScaleOptional antiquantOffsetOptional
        perTokenScaleOptional: Tensors, groupListOptional: Tensor, activationInputOptional
        activationQuantScaleOptional activationQuantOffsetOptional: Tensors, splitItem groupType groupListType
        actType: i64, tuningConfigOptional: IntsMut, quantGroupSize: i64, out activationFeatureOutOptional
        dynQuantScaleOutOptional: TensorsMut);
    aclnnInplaceFfnWorkerScheduler(scheduleContextRef: TensorMut, syncGroupSize executeMode: i32);
    aclnnInplaceMatmulAllReduceAddRmsNorm(
        x1 x2 bias residual gamma: Tensor, epsilon: f64, group reduceOp: Text, commTurn streamMode: i64,
        normOut: Tensor);
    aclnnInplaceQuantMatmulAllReduceAddRmsNorm(
        x1 x2 bias dequantScale residual gamma: Tensor, epsilon: f64, group reduceOp: Text, commTurn
        streamMode: i64, normOut: Tensor);
    aclnnInplaceWeightQuantMatmulAllReduceAddRmsNorm(
        x1 x2 bias antiquantScale antiquantOffset residual gamma: Tensor, epsilon: f64, group reduceOp: Text,
        commTurn streamMode antiquantGroupSize: i64, normOut: Tensor);
    aclnnMatmulAllReduceAddRmsNorm(
        x1 x2 bias residual gamma: Tensor, epsilon: f64, group reduceOp: Text, commTurn streamMode: i64, y
        normOut: Tensor);
    aclnnMatmulAllReduce, aclnnMatmulReduceScatter
        (x1 x2 bias: Tensor, group reduceOp: Text, commTurn streamMode: i64, output: Tensor);
    aclnnMatmulAllReduceV2
        (x1 x2 bias x3: Tensor, group reduceOp: Text, commTurn streamMode: i64, output: Tensor);
    aclnnMatmulAllReduceV3
        (x1 x2 bias x3: Tensor, group reduceOp commMode: Text, commTurn streamMode: i64, output: Tensor);
    aclnnMatmulAlltoAll(
        x1 x2 biasOptional: Tensor, alltoAllAxesOptional: Ints, group: Text, transposeX1 transposeX2: bool,
        output: Tensor);
    aclnnMatmulAlltoAllV2(
        x1 x2 biasOptional: Tensor, alltoAllAxesOptional: Ints, group commMode: Text, transposeX1
        transposeX2: bool, output: Tensor);
    aclnnMatmulReduceScatterV2(
        x1 x2 bias x1Scale x2Scale quantScale: Tensor, blockSize: i64, group reduceOp: Text, commTurn
        streamMode groupSize: i64, commMode: Text, output amaxOutOptional: TensorMut);
    aclnnMhcPostBackward(gradOutput x hRes hOut hPost: Tensor, gradX gradHRes gradHOut gradHPost: TensorMut);
    aclnnMhcPost(x hRes hOut hPost: Tensor, out: TensorMut);
    aclnnMhcPreBackward(
        x phi alpha gradHIn gradHPost gradHRes invRms hMix hPre hPost gamma gradXPostOptional: Tensor,
        hcEps: f32, gradX gradPhi gradAlpha gradBias gradGamma: Tensor);
    aclnnMhcPre(
        x phi alpha bias gammaOptional: Tensor, normEps hcEps: f64, hIn hPost hRes invRmsOptional hMixOptional
        hPreOptional: TensorMut);
    aclnnMhcPreSinkhornBackward(
        gradHin gradHPost gradHRes x phi alpha bias hPre hcBeforeNorm invRms sumOut normOut: Tensor,
        hcEps: f64, gradX gradPhi gradAlpha gradBias: Tensor);
    aclnnMhcPreSinkhorn(
        x phi alpha bias: Tensor, hcMult numIters: i64, hcEps normEps: f64, needBackward: bool, hin hPost hRes
        hPre hcBeforeNorm invRms sumOut normOut: TensorMut);
    aclnnMhcSinkhornBackward(gradOutput normOut sumOut: Tensor, out: TensorMut);
    aclnnMhcSinkhorn(x: Tensor, eps: f32, numIters: i64, output normOut sumOut: TensorMut);
    aclnnMoeComputeExpertTokens(sortedExperts: Tensor, numExperts: i64, out: Tensor);
    aclnnMoeDistributeCombineAddRmsNorm(
        expandX expertIds assistInfoForCombine epSendCounts expertScales residualX gamma tpSendCountsOptional
        xActiveMaskOptional activationScaleOptional weightScaleOptional groupListOptional expandScalesOptional
        sharedExpertXOptional: Tensor, groupEp: Text, epWorldSize epRankId moeExpertNum: i64, groupTp: Text,
        tpWorldSize tpRankId expertShardType sharedExpertNum sharedExpertRankNum globalBs outDtype
        commQuantMode groupListType: i64, commAlg: Text, normEps: f32, yOut rstdOut xOut: TensorMut);
    aclnnMoeDistributeCombineAddRmsNormV2(
        expandX expertIds assistInfoForCombine epSendCounts expertScales residualX gamma tpSendCountsOptional
        xActiveMaskOptional activationScaleOptional weightScaleOptional groupListOptional expandScalesOptional
        sharedExpertXOptional elasticInfoOptional oriXOptional constExpertAlpha1Optional
        constExpertAlpha2Optional constExpertVOptional: Tensor, groupEp: Text, epWorldSize epRankId
        moeExpertNum: i64, groupTp: Text, tpWorldSize tpRankId expertShardType sharedExpertNum
        sharedExpertRankNum globalBs outDtype commQuantMode groupListType: i64, commAlg: Text, normEps: f32,
        zeroExpertNum copyExpertNum constExpertNum: i64, yOut rstdOut xOut: TensorMut);
    aclnnMoeDistributeCombine(
        expandX expertIds expandIdx epSendCounts expertScales tpSendCounts xActiveMask activationScale
        weightScale groupList expandScales: Tensor, groupEp: Text, epWorldSize epRankId moeExpertNum: i64,
        groupTp: Text, tpWorldSize tpRankId expertShardType sharedExpertNum sharedExpertRankNum globalBs
        outDtype commQuantMode groupList_type: i64, x: TensorMut);
    aclnnMoeDistributeCombineSetup(
        expandX expertIds assistInfoForCombine: Tensor, groupEp: Text, epWorldSize epRankId moeExpertNum
        expertSharedType sharedExpertNum sharedExpertRankNum globalBs commQuantMode commType: i64,
        commAlg: Text, quantExpandXOut commCmdInfoOut: TensorMut);
    aclnnMoeDistributeCombineTeardown(
        expandX quantExpandX expertIds expandIdx expertScales commCmdInfo xActiveMaskOptional
        sharedExpertXOptional: Tensor, groupEp: Text, epWorldSize epRankId moeExpertNum expertShardType
        sharedExpertNum sharedExpertRankNum globalBs commQuantMode commType: i64, commAlg: Text,
        xOut: TensorMut);
    aclnnMoeDistributeCombineV2(
        expandX expertIds assistInfoForCombine epSendCounts expertScales tpSendCountsOptional
        xActiveMaskOptional activationScaleOptional weightScaleOptional groupListOptional expandScalesOptional
        sharedExpertXOptional: Tensor, groupEp: Text, epWorldSize epRankId moeExpertNum: i64, groupTp: Text,
        tpWorldSize tpRankId expertShardType sharedExpertNum sharedExpertRankNum globalBs outDtype
        commQuantMode groupListType: i64, commAlg: Text, xOut: TensorMut);
    aclnnMoeDistributeCombineV3(
        expandX expertIds assistInfoForCombine epSendCounts expertScales tpSendCountsOptional
        xActiveMaskOptional activationScaleOptional weightScaleOptional groupListOptional expandScalesOptional
        sharedExpertXOptional elasticInfoOptional oriXOptional constExpertAlpha1Optional
        constExpertAlpha2Optional constExpertVOptional: Tensor, groupEp: Text, epWorldSize epRankId
        moeExpertNum: i64, groupTp: Text, tpWorldSize tpRankId expertShardType sharedExpertNum
        sharedExpertRankNum globalBs outDtype commQuantMode groupListType: i64, commAlg: Text, zeroExpertNum
        copyExpertNum constExpertNum: i64, xOut: TensorMut);
    aclnnMoeDistributeCombineV4(
        expandX expertIds assistInfoForCombine epSendCounts expertScales tpSendCountsOptional
        xActiveMaskOptional activationScaleOptional weightScaleOptional groupListOptional expandScalesOptional
        sharedExpertXOptional elasticInfoOptional oriXOptional constExpertAlpha1Optional
        constExpertAlpha2Optional constExpertVOptional performanceInfoOptional: Tensor, groupEp: Text,
        epWorldSize epRankId moeExpertNum: i64, groupTp: Text, tpWorldSize tpRankId expertShardType
        sharedExpertNum sharedExpertRankNum globalBs outDtype commQuantMode groupListType: i64, commAlg: Text,
        zeroExpertNum copyExpertNum constExpertNum: i64, xOut: TensorMut);
    aclnnMoeDistributeDispatch(
        x expertIds scales xActiveMask expertScales: Tensor, groupEp: Text, epWorldSize epRankId
        moeExpertNum: i64, groupTp: Text, tpWorldSize tpRankId expertShardType sharedExpertNum
        sharedExpertRankNum quantMode globalBs expertTokenNumsType: i64, expandX dynamicScales expandIdx
        expertTokenNums epRecvCounts tpRecvCounts expandScales: TensorMut);
    aclnnMoeDistributeDispatchSetup(
        x expertIds scalesOptional xActiveMaskOptional: Tensor, groupEp: Text, epWorldSize epRankId
        moeExpertNum expertShardType sharedExpertNum sharedExpertRankNum quantMode globalBs commType: i64,
        commAlg: Text, yOut expandIdxOut commCmdInfoOut: TensorMut);
    aclnnMoeDistributeDispatchTeardown(
        x y expertIds commCmdInfo: Tensor, groupEp: Text, epWorldSize epRankId moeExpertNum expertShardType
        sharedExpertNum sharedExpertRankNum quantMode globalBs expertTokenNumsType commType: i64,
        commAlg: TextMut, expandXOut dynamicScalesOut assistInfoForCombineOut expertTokenNumsOut: TensorMut);
    aclnnMoeDistributeDispatchV2(
        x expertIds scalesOptional xActiveMaskOptional expertScalesOptional: Tensor, groupEp: Text,
        epWorldSize epRankId moeExpertNum: i64, groupTp: Text, tpWorldSize tpRankId expertShardType
        sharedExpertNum sharedExpertRankNum quantMode globalBs expertTokenNumsType: i64, commAlg: Text,
        expandXOut dynamicScalesOut assistInfoForCombineOut expertTokenNumsOut epRecvCountsOut tpRecvCountsOut
        expandScalesOut: TensorMut);
    aclnnMoeDistributeDispatchV3(
        x expertIds scalesOptional xActiveMaskOptional expertScalesOptional elasticInfoOptional: Tensor,
        groupEp: Text, epWorldSize epRankId moeExpertNum: i64, groupTp: Text, tpWorldSize tpRankId
        expertShardType sharedExpertNum sharedExpertRankNum quantMode globalBs expertTokenNumsType: i64,
        commAlg: Text, zeroExpertNum copyExpertNum constExpertNum: i64, expandXOut dynamicScalesOut
        assistInfoForCombineOut expertTokenNumsOut epRecvCountsOut tpRecvCountsOut
        expandScalesOut: TensorMut);
    aclnnMoeDistributeDispatchV4(
        x expertIds scalesOptional xActiveMaskOptional expertScalesOptional elasticInfoOptional
        performanceInfoOptional: Tensor, groupEp: Text, epWorldSize epRankId moeExpertNum: i64, groupTp: Text,
        tpWorldSize tpRankId expertShardType sharedExpertNum sharedExpertRankNum quantMode globalBs
        expertTokenNumsType: i64, commAlg: Text, zeroExpertNum copyExpertNum constExpertNum: i64, expandXOut
        dynamicScalesOut assistInfoForCombineOut expertTokenNumsOut epRecvCountsOut tpRecvCountsOut
        expandScalesOut: TensorMut);
    aclnnMoeFinalizeRouting(expandedX x1 x2Optional bias scales expandedRowIdx expandedExpertIdx out: Tensor);
    aclnnMoeFinalizeRoutingV2(
        expandedX expandedRowIdx x1Optional x2Optional biasOptional scalesOptional expertIdxOptional: Tensor,
        dropPadMode: i64, out: Tensor);
    aclnnMoeFinalizeRoutingV2Grad(
        gradY expandedRowIdx expandedXOptional scalesOptional expertIdxOptional biasOptional: Tensor,
        dropPadMode activeNum expertNum expertCapacity: i64, gradExpandedXOut gradScalesOut: Tensor);
    aclnnMoeFinalizeRoutingV3(
        expandedX expandedRowIdx x1Optional x2Optional biasOptional scalesOptional expertIdxOptional xOptional
        a1Optional a2Optional vOptional: Tensor, dropPadMode: i64, zeroExpertRange copyExpertRange
        constantExpertRange: Ints, out: Tensor);
    aclnnMoeFinalizeRoutingV4(
        expandedX expandedRowIdx x1Optional x2Optional biasOptional scalesOptional expertIdxOptional xOptional
        a1Optional a2Optional vOptional: Tensor, dropPadMode: i64, zeroExpertRange copyExpertRange
        constantExpertRange: Ints, k: i64, out: Tensor);
    aclnnMoeFusedTopk(
        x addNum mappingNum mappingTable: Tensor, groupNum groupTopk topN topK activateType: u32,
        isNorm: bool, scale: f32, enableExpertMapping: bool, y indices: TensorMut);
    aclnnMoeGatingTopKBackward
        (xNorm gradY expertIdx: Tensor, renorm normType: i64, routedScalingFactor eps: f64, out: Tensor);
    aclnnMoeGatingTopK(
        x biasOptional: Tensor, k kGroup groupCount groupSelectMode renorm normType: i64, outFlag: bool,
        routedScalingFactor eps: f64, yOut expertIdxOut outOut: Tensor);
    aclnnMoeGatingTopKSoftmax(x finishedOptional: Tensor, k: i64, yOut expertIdxOut rowIdxOut: Tensor);
    aclnnMoeGatingTopKSoftmaxV2(
        x finishedOptional: Tensor, k renorm: i64, outputSoftmaxResultFlag: bool, yOut expertIdxOut
        softmaxResultOutOptional: Tensor);
    aclnnMoeGatingTopKV2(
        x biasOptional inputIdsOptional tid2eidOptional: Tensor, k kGroup groupCount groupSelectMode renorm
        normType: i64, outFlag: bool, routedScalingFactor eps: f64, yOut expertIdxOut outOut: Tensor);
    aclnnMoeInitRouting(
        x rowIdx expertIdx: Tensor, activeNum: i64, expandedXOut expandedRowIdxOut
        expandedExpertIdxOut: Tensor);
    aclnnMoeInitRoutingQuant(
        x rowIdx expertIdx: Tensor, activeNum: i64, scale offset: f64, expandedXOut expandedRowIdxOut
        expandedExpertIdxOut: Tensor);
    aclnnMoeInitRoutingQuantV2(
        x expertIdx scaleOptional offsetOptional: Tensor, activeNum expertCapacity expertNum dropPadMode
        expertTokensCountOrCumsumFlag: i64, expertTokensBeforeCapacityFlag: bool, quantMode: i64, expandedXOut
        expandedRowIdxOut expertTokensCountOrCumsumOutOptional expertTokensBeforeCapacityOutOptional
        dynamicQuantScaleOutOptional: Tensor);
    aclnnMoeInitRoutingV2(
        x expertIdx: Tensor, activeNumOptional expertCapacityOptional expertNumOptional dropPadModeOptional
        expertTokensCountOrCumsumFlagOptional: i64, expertTokensBeforeCapacityFlagOptional: bool, expandedXOut
        expandedRowIdxOut expertTokensCountOrCumsumOutOptional expertTokensBeforeCapacityOutOptional: Tensor);
    aclnnMoeInitRoutingV2Grad
        (gradExpandedX expandedRowIdx: Tensor, topK dropPadMode activeNum: i64, out: Tensor);
    aclnnMoeInitRoutingV3(
        x expertIdx scaleOptional offsetOptional: Tensor, activeNum expertCapacity expertNum dropPadMode
        expertTokensNumType: i64, expertTokensNumFlag: bool, quantMode: i64,
        activeExpertRangeOptional: Ints, rowIdxType: i64, expandedXOut expandedRowIdxOut
        expertTokensCountOrCumsumOut expandedScaleOut: Tensor);
    aclnnMoeTokenPermute(
        tokens indices: Tensor, numOutTokens: i64, paddedMode: bool, permuteTokensOut
        sortedIndicesOut: Tensor);
    aclnnMoeTokenPermuteGrad
        (permutedOutputGrad sortedIndices: Tensor, numTopk: i64, paddedMode: bool, out: Tensor);
    aclnnMoeTokenPermuteV2(
        tokens indices: Tensor, numOutTokens: i64, paddedMode: bool, quantMode: i64, permuteTokensOut
        sortedIndicesOut expandedScaleOut: Tensor);
    aclnnMoeTokenPermuteWithEp(
        tokens indices probsOptional: Tensor, rangeOptional: Ints, numOutTokens: i64, paddedMode: bool,
        permuteTokensOut sortedIndicesOut permuteProbsOut: Tensor);
    aclnnMoeTokenPermuteWithEpGrad(
        permutedTokensOutputGrad sortedIndices permutedProbsOutputGradOptional: Tensor, numTopk: i64,
        rangeOptional: Ints, paddedMode: bool, tokenGradOut probsGradOut: Tensor);
    aclnnMoeTokenPermuteWithRoutingMap(
        tokens routingMap probsOptional: Tensor, numOutTokens: i64, dropAndPad: bool, permuteTokensOut
        permuteProbsOutOptional sortedIndicesOut: TensorMut);
    aclnnMoeTokenPermuteWithRoutingMapGrad(
        permutedTokenOutputGrad permutedProbsOutputGradOptional sortedIndices routingMapOptional: Tensor,
        numExperts tokensNum: i64, dropAndPad: bool, tokensGradOut probsGradOutOptional: TensorMut);
    aclnnMoeTokenUnpermute(
        permutedTokens sortedIndices probsOptional: Tensor, paddedMode: bool, restoreShapeOptional: Ints,
        out: Tensor);
    aclnnMoeTokenUnpermuteGrad(
        permutedTokens unpermutedTokensGrad sortedIndices probsOptional: Tensor, paddedMode: bool,
        restoreShapeOptional: Ints, permutedTokensGradOut probsGradOut: Tensor);
    aclnnMoeTokenUnpermuteWithEp(
        permutedTokens sortedIndices probsOptional: Tensor, numTopk: i64, rangeOptional: Ints,
        paddedMode: bool, restoreShapeOptional: Ints, out: Tensor);
    aclnnMoeTokenUnpermuteWithEpGrad(
        unpermutedTokensGrad sortedIndices permutedTokensOptional probsOptional: Tensor, paddedMode: bool,
        restoreShapeOptional rangeOptional: Ints, topkNum: i64, permutedTokensGradOut probsGradOut: Tensor);
    aclnnMoeTokenUnpermuteWithRoutingMap(
        permutedTokens sortedIndices routingMapOptional probsOptional: Tensor, paddedMode: bool,
        restoreShapeOptional: Ints, unpermutedTokens outIndex permuteTokenId permuteProbs: TensorMut);
    aclnnMoeTokenUnpermuteWithRoutingMapGrad(
        unpermutedTokensGrad outIndex permuteTokenId routingMapOptional permutedTokensOptional
        probsOptional: Tensor, dropAndPad: bool, restoreShapeOptional: Ints, permutedTokensGradOut
        probsGradOutOptional: Tensor);
    aclnnMoeUpdateExpert(
        expertIds eplbTable expertScalesOptional pruningThresholdOptional activeMaskOptional: Tensor,
        localRankId worldSize balanceMode: i64, balancedExpertIds balancedActiveMask: TensorMut);
    aclnnQuantAllReduce, aclnnQuantReduceScatter(x scales: Tensor, group reduceOp: Text, output: TensorMut);
    aclnnQuantGroupedMatMulAlltoAllv(
        gmmX gmmWeight gmmXScale gmmWeightScale sendCountsTensorOptional recvCountsTensorOptional mmXOptional
        mmWeightOptional mmXScaleOptional mmWeightScaleOptional commQuantScaleOptional: Tensor, gmmXQuantMode
        gmmWeightQuantMode mmXQuantMode mmWeightQuantMode commQuantMode commQuantDtypeOptional groupSize: i64,
        group: Text, epWorldSize: i64, sendCounts recvCounts: Ints, transGmmWeight transMmWeight: bool, y
        mmYOptional: Tensor);
    aclnnQuantGroupedMatMulAlltoAllvV2(
        gmmX gmmWeight gmmXScale gmmWeightScale sendCountsTensorOptional recvCountsTensorOptional mmXOptional
        mmWeightOptional mmXScaleOptional mmWeightScaleOptional commQuantScaleOptional: Tensor, gmmXQuantMode
        gmmWeightQuantMode mmXQuantMode mmWeightQuantMode commQuantMode commQuantDtypeOptional groupSize: i64,
        group commMode: Text, epWorldSize: i64, sendCounts recvCounts: Ints, transGmmWeight
        transMmWeight: bool, y mmYOptional: Tensor);
    aclnnQuantGroupedMatmulDequant(
        x weight weightScale groupList biasOptional xScaleOptional xOffsetOptional
        smoothScaleOptional: Tensor, xQuantMode: TextMut, transposeWeight: bool, out: Tensor);
    aclnnQuantGroupedMatmulDequantWeightNZ(
        x weight weightScale groupList biasOptional xScaleOptional xOffsetOptional
        smoothScaleOptional: Tensor, xQuantMode: TextMut, transposeWeight: bool, out: TensorMut);
    aclnnQuantGroupedMatmulInplaceAdd
        (x1 x2 scale1Optional scale2 groupList: Tensor, yRef: TensorMut, groupListType groupSize: i64);
    aclnnQuantMatmulAllReduceAddRmsNorm(
        x1 x2 bias dequantScale residual gamma: Tensor, epsilon: f64, group reduceOp: Text, commTurn
        streamMode: i64, y normOut: Tensor);
    aclnnQuantMatmulAllReduce
        (x1 x2 bias x3 dequantScale: Tensor, group reduceOp: Text, commTurn streamMode: i64, output: Tensor);
    aclnnQuantMatmulAllReduceV2(
        x1 x2 biasOptional x3Optional dequantScale pertokenScaleOptional: Tensor, group reduceOp: Text,
        commTurn streamMode: i64, output: Tensor);
    aclnnQuantMatmulAllReduceV3(
        x1 x2 biasOptional x3Optional dequantScale pertokenScaleOptional commQuantScale1Optional
        commQuantScale2Optional: Tensor, group reduceOp: Text, commTurn streamMode: i64, output: Tensor);
    aclnnQuantMatmulAllReduceV4(
        x1 x2 biasOptional x3Optional x1ScaleOptional x2Scale commQuantScale1Optional
        commQuantScale2Optional: Tensor, group reduceOp: Text, commTurn streamMode groupSize
        commQuantMode: i64, output: Tensor);
    aclnnQuantMatmulAllReduceV5(
        x1 x2 biasOptional x3Optional x1ScaleOptional x2Scale commQuantScale1Optional
        commQuantScale2Optional: Tensor, group reduceOp commMode: Text, commTurn streamMode groupSize
        commQuantMode: i64, output: Tensor);
    aclnnQuantMatmulAlltoAll(
        x1 x2 biasOptional x1Scale x2Scale commScaleOptional x1OffsetOptional x2OffsetOptional: Tensor,
        alltoAllAxesOptional: Ints, group: Text, x1QuantMode x2QuantMode commQuantMode commQuantDtype
        groupSize: i64, transposeX1 transposeX2: bool, output: Tensor);
    aclnnQuantMatmulAlltoAllV2(
        x1 x2 biasOptional x1Scale x2Scale commScaleOptional x1OffsetOptional x2OffsetOptional: Tensor,
        alltoAllAxesOptional: Ints, group commMode: Text, x1QuantMode x2QuantMode commQuantMode commQuantDtype
        groupSize: i64, transposeX1 transposeX2: bool, output: Tensor);
    aclnnWeightQuantMatmulAllReduceAddRmsNorm(
        x1 x2 bias antiquantScale antiquantOffset residual gamma: Tensor, epsilon: f64, group reduceOp: Text,
        commTurn streamMode antiquantGroupSize: i64, y normOut: Tensor);
    aclnnWeightQuantMatmulAllReduce(
        x1 x2 bias antiquantScale antiquantOffset x3: Tensor, group reduceOp: Text, commTurn streamMode
        antiquantGroupSize: i64, output: Tensor);
    aclnnWeightQuantMatmulAllReduceV2(
        x1 x2 bias antiquantScale antiquantOffset x3: Tensor, group reduceOp commMode: Text, commTurn
        streamMode antiquantGroupSize: i64, output: Tensor);
}
