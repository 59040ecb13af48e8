/* A client that knows only the prototypes of the public operator pages: y = rmsnorm(a + b), checked on the host. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct aclTensor aclTensor;
typedef struct aclScalar aclScalar;
typedef struct aclOpExecutor aclOpExecutor;
typedef void *aclrtStream;

int aclInit(const char *configPath);
int aclFinalize(void);
int aclrtSetDevice(int32_t deviceId);
int aclrtResetDevice(int32_t deviceId);
int aclrtCreateStream(aclrtStream *stream);
int aclrtDestroyStream(aclrtStream stream);
int aclrtSynchronizeStream(aclrtStream stream);
int aclrtMalloc(void **devPtr, size_t size, int policy);
int aclrtFree(void *devPtr);
int aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, int kind);
const char *aclGetRecentErrMsg(void);
aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, int dataType, const int64_t *stride, int64_t offset,
                           int format, const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData);
int aclDestroyTensor(const aclTensor *tensor);
aclScalar *aclCreateScalar(void *value, int dataType);
int aclDestroyScalar(const aclScalar *scalar);
int aclnnAddGetWorkspaceSize(const aclTensor *self, const aclTensor *other, const aclScalar *alpha, aclTensor *out,
                             uint64_t *workspaceSize, aclOpExecutor **executor);
int aclnnAdd(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream);
int aclnnRmsNormGetWorkspaceSize(const aclTensor *x, const aclTensor *gamma, double epsilon, const aclTensor *yOut,
                                 const aclTensor *rstdOut, uint64_t *workspaceSize, aclOpExecutor **executor);
int aclnnRmsNorm(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream);

static void check(int code, const char *what) {
    if (code != 0) {
        const char *text = aclGetRecentErrMsg();
        fprintf(stderr, "%s: %d %s\n", what, code, text ? text : "");
        exit(1);
    }
}

static aclTensor *tensor(void *at, int64_t rows, int64_t columns) {
    int64_t dims[2] = {rows, columns}, strides[2] = {columns, 1};
    /* A weight has one dimension. */
    return rows == 0 ? aclCreateTensor(dims + 1, 1, 0, strides + 1, 0, 2, dims + 1, 1, at)
                     : aclCreateTensor(dims, 2, 0, strides, 0, 2, dims, 2, at);
}

static void *upload(const float *values, size_t n) {
    void *at = NULL;
    check(aclrtMalloc(&at, n * 4, 0), "aclrtMalloc");
    if (values) check(aclrtMemcpy(at, n * 4, values, n * 4, 1), "aclrtMemcpy");
    return at;
}

int main(void) {
    enum { R = 3, C = 5 };
    float a[R * C], b[R * C], g[C], y[R * C], one = 1;
    for (int i = 0; i < R * C; i++) a[i] = 0.1f * (float)i - 0.5f, b[i] = (float)((i * 7) % 5) - 2;
    for (int i = 0; i < C; i++) g[i] = 1 + 0.25f * (float)i;
    aclrtStream stream = NULL;
    check(aclInit(NULL), "aclInit");
    check(aclrtSetDevice(0), "aclrtSetDevice");
    check(aclrtCreateStream(&stream), "aclrtCreateStream");
    void *da = upload(a, R * C), *db = upload(b, R * C), *dg = upload(g, C), *ds = upload(NULL, R * C), *dy = upload(NULL, R * C),
         *dr = upload(NULL, R);
    aclTensor *ta = tensor(da, R, C), *tb = tensor(db, R, C), *tg = tensor(dg, 0, C), *ts = tensor(ds, R, C), *ty = tensor(dy, R, C),
              *tr = tensor(dr, R, 1);
    aclScalar *alpha = aclCreateScalar(&one, 0);
    uint64_t size = 0;
    void *work[2] = {NULL, NULL};
    aclOpExecutor *executor = NULL;
    check(aclnnAddGetWorkspaceSize(ta, tb, alpha, ts, &size, &executor), "aclnnAddGetWorkspaceSize");
    if (size > 0) check(aclrtMalloc(&work[0], size, 0), "aclrtMalloc");
    check(aclnnAdd(work[0], size, executor, stream), "aclnnAdd");
    check(aclnnRmsNormGetWorkspaceSize(ts, tg, 1e-6, ty, tr, &size, &executor), "aclnnRmsNormGetWorkspaceSize");
    if (size > 0) check(aclrtMalloc(&work[1], size, 0), "aclrtMalloc");
    check(aclnnRmsNorm(work[1], size, executor, stream), "aclnnRmsNorm");
    check(aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");
    check(aclrtMemcpy(y, sizeof y, dy, sizeof y, 2), "aclrtMemcpy");
    for (int r = 0; r < R; r++) {
        double square = 0;
        for (int c = 0; c < C; c++) square += pow(a[r * C + c] + b[r * C + c], 2);
        for (int c = 0; c < C; c++) {
            double want = (a[r * C + c] + b[r * C + c]) / sqrt(square / C + 1e-6) * g[c];
            if (fabs(want - y[r * C + c]) > 1e-5) {
                fprintf(stderr, "row %d column %d: %f, expected %f\n", r, c, y[r * C + c], want);
                return 1;
            }
        }
    }
    const aclTensor *tensors[] = {ta, tb, tg, ts, ty, tr};
    for (int i = 0; i < 6; i++) check(aclDestroyTensor(tensors[i]), "aclDestroyTensor");
    check(aclDestroyScalar(alpha), "aclDestroyScalar");
    void *memory[] = {da, db, dg, ds, dy, dr, work[0], work[1]};
    for (int i = 0; i < 8; i++) if (memory[i]) check(aclrtFree(memory[i]), "aclrtFree");
    check(aclrtDestroyStream(stream), "aclrtDestroyStream");
    check(aclrtResetDevice(0), "aclrtResetDevice");
    check(aclFinalize(), "aclFinalize");
    puts("equal");
    return 0;
}
