/* The functions by which XLA calls native code, for the interface in jaxlib's xla/ffi/api/c_api.h.

`make handler` has Clang compile them to handler.ll, of which LLVM makes machine code in milliseconds on the machine
where they run, so that a user needs no compiler.

XLA's threads and the caller compute the pieces of the work: each takes the next piece that is left, and the caller never
waits for a thread that has not begun. So any number of devices may call at the same time. No Python runs between XLA's
call and the address of a kernel: Python could raise KeyboardInterrupt there, which a C caller loses. */

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "xla/ffi/api/c_api.h"

typedef XLA_FFI_Error Error;
typedef XLA_FFI_CallFrame Frame;
typedef int64_t Int;
typedef void Kernel(char *a, char *b, char *out, void *columns, void *ptr, void *pattern, Int *sizes, Int piece);

enum { HUGE_PAGES = 14, LARGE = 4 << 20 }; /* advice to Linux; bytes of a result that gets huge pages */

/* The addresses of the kernels, 0 for those that are not compiled; for `guarded` that of the library's handler. */
extern Int jaxsparse_table[];

/* The first words of the attribute `sizes`, in the order of `abi.SIZES`. */
typedef struct {
  Int kernel, batch, pieces, a_bytes, b_bytes, out_bytes, piece_bytes, most, n_rows, n_cols, p, n_ptr;
} Sizes;

/* What threads share of a call. The last that holds the job frees it, perhaps long after the call. */
typedef struct {
  Int next, *done, count, holders;
  Frame *frame;
} Job;

static Sizes *sizes_of(Frame *frame) { return ((XLA_FFI_Array *)frame->attrs.attrs[0])->data; }

static XLA_FFI_Buffer *operand(Frame *frame, int k) { return frame->args.args[k]; }

static XLA_FFI_Buffer *result(Frame *frame) { return frame->rets.rets[0]; }

static Error *refuse(Frame *frame, const char *message, XLA_FFI_Error_Code kind) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, message, kind};
  return frame->api->XLA_FFI_Error_Create(&args);
}

/* Whether a function of XLA returned an error, which is freed. */
static int fails(Frame *frame, Error *error) {
  XLA_FFI_Error_Destroy_Args args = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, NULL, error};
  if (error) frame->api->XLA_FFI_Error_Destroy(&args);
  return error != NULL;
}

/* Answers XLA's question for the version of the interface, before the first call. The arguments, results and attributes
   lie one after another in a frame; where they have other sizes the answer is 0.0, which XLA refuses. */
static int asks_version(Frame *frame) {
  XLA_FFI_Metadata_Extension *extension = (XLA_FFI_Metadata_Extension *)frame->extension_start;
  if (!extension || extension->extension_base.type != XLA_FFI_Extension_Metadata) return 0;
  XLA_FFI_Api_Version *version = &extension->metadata->api_version;
  int known = frame->struct_size >= XLA_FFI_CallFrame_STRUCT_SIZE && frame->api &&
              frame->api->struct_size >= XLA_FFI_STRUCT_SIZE(XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads) &&
              frame->args.struct_size == XLA_FFI_Args_STRUCT_SIZE &&
              frame->rets.struct_size == XLA_FFI_Rets_STRUCT_SIZE &&
              frame->attrs.struct_size == XLA_FFI_Attrs_STRUCT_SIZE;
  version->major_version = known ? XLA_FFI_API_MAJOR : 0;
  version->minor_version = known ? XLA_FFI_API_MINOR : 0;
  return 1;
}

/* Computes one of the pieces of all members of the batch. */
static void compute(Frame *frame, Int number) {
  Sizes *sizes = sizes_of(frame);
  Int member = number / sizes->pieces;
  char *a = operand(frame, 0)->data, *b = operand(frame, 1)->data, *out = result(frame)->data;
  ((Kernel *)jaxsparse_table[sizes->kernel])(
      a + member * sizes->a_bytes, b + member * sizes->b_bytes,
      out + member * sizes->out_bytes + number * sizes->piece_bytes, operand(frame, 2)->data, operand(frame, 3)->data,
      operand(frame, 4)->data, (Int *)sizes, number % sizes->pieces);
}

/* Computes piece after piece until none is left, then lets go of the job. */
static void work(void *data) {
  Job *job = data;
  for (Int piece; (piece = __atomic_fetch_add(&job->next, 1, __ATOMIC_SEQ_CST)) < job->count;) {
    compute(job->frame, piece);
    __atomic_fetch_add(job->done, 1, __ATOMIC_SEQ_CST);
  }
  if (__atomic_fetch_sub(&job->holders, 1, __ATOMIC_SEQ_CST) == 1) free(job);
}

/* XLA takes fresh memory for a large result, and the first write to each of its pages takes longer than a kernel's work
   on the page; so this asks Linux for huge pages. Other systems know no such advice. */
static void take_huge_pages(char *data, Int bytes) {
  Int page = getpagesize();
  char *first = (char *)(((Int)data + page - 1) & -page);
  if (bytes >= LARGE) madvise(first, (data + bytes - first) & -page, HUGE_PAGES);
}

Error *jaxsparse_native(Frame *frame) {
  if (asks_version(frame) || frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return NULL;
  Sizes *sizes = sizes_of(frame);
  if (!jaxsparse_table[sizes->kernel])
    return refuse(frame,
                  "a program that another process has compiled calls a native kernel that this process lacks; compile "
                  "the program's function here once, by jax.jit(f).lower(...).compile(), or for all processes under "
                  "use_backend(\"xla\")",
                  XLA_FFI_Error_Code_NOT_FOUND);
  if (sizes->most >= 0) {
    XLA_FFI_Buffer *ptr = operand(frame, 3);
    Int k = sizes->n_ptr - 1, is_wide = ptr->dtype == XLA_FFI_DataType_S64;
    Int last = is_wide ? ((Int *)ptr->data)[k] : ((int32_t *)ptr->data)[k];
    if (last < 0 || last > sizes->most)
      return refuse(frame,
                    "the pointers of a sparse matrix lead beyond its entries, as after jax.tree.map over all its "
                    "arrays; scale it by 2 * A, and give it other numbers by A.with_data(data)",
                    XLA_FFI_Error_Code_INVALID_ARGUMENT);
  }
  Int count = sizes->batch * sizes->pieces, threads = 0, done = 0;
  take_huge_pages(result(frame)->data, sizes->batch * sizes->out_bytes + count * sizes->piece_bytes);
  if (count < 2) {
    if (count) compute(frame, 0);
    return NULL;
  }
  Job *job = malloc(sizeof(Job));
  if (!job) return refuse(frame, "no memory for a call of a native kernel", XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
  XLA_FFI_ThreadPool_NumThreads_Args asked = {XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, NULL, frame->ctx,
                                              &threads};
  fails(frame, frame->api->XLA_FFI_ThreadPool_NumThreads(&asked));
  Int helpers = threads - 1 < count - 1 ? threads - 1 : count - 1;
  *job = (Job){0, &done, count, helpers + 1, frame};
  for (; helpers > 0; helpers--) { /* wakes one thread at a time */
    XLA_FFI_ThreadPool_Schedule_Args args = {XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, NULL, frame->ctx, work, job};
    if (fails(frame, frame->api->XLA_FFI_ThreadPool_Schedule(&args)))
      __atomic_fetch_sub(&job->holders, 1, __ATOMIC_SEQ_CST);
  }
  work(job);
  while (__atomic_load_n(&done, __ATOMIC_SEQ_CST) < count) sched_yield();
  return NULL;
}

/* Calls the handler of a library, whose one result is in float64, and answers its failure with a result of NaN. */
Error *guarded(Frame *frame) {
  Error *error = ((Error * (*)(Frame *)) jaxsparse_table[0])(frame);
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE || !fails(frame, error))
    return frame->stage == XLA_FFI_ExecutionStage_EXECUTE ? NULL : error;
  XLA_FFI_Buffer *buffer = result(frame);
  Int count = 1;
  for (Int axis = 0; axis < buffer->rank; axis++) count *= buffer->dims[axis];
  for (Int i = 0; i < count; i++) ((double *)buffer->data)[i] = __builtin_nan("");
  return NULL;
}
