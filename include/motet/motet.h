/* SPDX-License-Identifier: Apache-2.0
 * Motet's C interface: the promised binary interface. Opaque handles, structs that start with their size, error codes with a
 * message. No C++ type and no exception crosses it.
 *
 * Order of work: motet_checkpoint_open, motet_plan_create, motet_layer_create, motet_layer_forward; release in any order
 * (a layer keeps what it needs alive). Handles may be used from several threads, but one layer runs one forward at a time.
 *
 * Every struct's first member is `size`: set it to sizeof(the struct) (the MOTET_INIT macros do). A library newer than the caller
 * takes 0 for members that came after the caller's version; a size below version 0.1's is refused, and so is a struct larger than
 * the library knows unless the unknown part is zero.
 *
 * Functions that can fail return a motet_status: 0 is ok. motet_last_error() tells the sentence. NULL handles are refused by name;
 * release functions take NULL, and functions that return a number or a text give 0, -1 or "" for it.
 */
#ifndef MOTET_MOTET_H
#define MOTET_MOTET_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define MOTET_API
#else
#define MOTET_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The same numbers as motet::ErrorCode. */
typedef int32_t motet_status;
enum {
  MOTET_OK = 0,
  MOTET_INVALID_ARGUMENT = 1,
  MOTET_NOT_SUPPORTED = 2,
  MOTET_WOULD_NOT_FIT = 3,
  MOTET_BAD_INPUT = 4,
  MOTET_IO_ERROR = 5,
  MOTET_TOKENS_EXCEED_PLAN = 6,
  MOTET_WRONG_SHAPE = 7,
  MOTET_WRONG_DTYPE = 8,
  MOTET_ID_OUT_OF_RANGE = 9,
  MOTET_DUPLICATE_ID = 10,
  MOTET_FILE_CHANGED = 11,
  MOTET_HOOK_MISMATCH = 12,
  MOTET_CHECK_FAILED = 13,
  MOTET_CANCELLED = 14,
  MOTET_INTERNAL = 15,
  MOTET_RANKS_DISAGREE = 16,
  MOTET_RANK_MISSING = 17,
  MOTET_STEP_LEFT = 18
};

typedef int32_t motet_dtype;
enum { MOTET_F32 = 0, MOTET_BF16 = 1, MOTET_F16 = 2 };
typedef int32_t motet_arithmetic;
enum { MOTET_ARITHMETIC_BF16 = 0, MOTET_ARITHMETIC_EXACT = 1, MOTET_ARITHMETIC_FAST = 2 };
typedef int32_t motet_residence;
enum { MOTET_RESIDENCE_MAPPED = 0, MOTET_RESIDENCE_PACKED = 1 };

typedef struct motet_checkpoint motet_checkpoint;
typedef struct motet_plan motet_plan;
typedef struct motet_layer motet_layer;

/* Version of the library, such as "0.1.0". Static storage. */
MOTET_API const char* motet_version(void);
/* The sentence of this thread's last call that returned a motet_status, "" when that was ok; one longer than 8 KiB ends in "...".
 * Valid until the thread's next such call. */
MOTET_API const char* motet_last_error(void);
/* The stable name of a status, such as "tokens_exceed_plan". Static storage. */
MOTET_API const char* motet_status_name(motet_status status);

/* ---- checkpoint ---- */

/* `where`: a directory, one .safetensors file, or a hub id in the local cache; UTF-8. */
MOTET_API motet_status motet_checkpoint_open(const char* where, motet_checkpoint** out);
MOTET_API void motet_checkpoint_release(motet_checkpoint* checkpoint);
/* Number of MoE layers, and the model's number of the i-th (ascending); -1 when i is out of range. */
MOTET_API int64_t motet_checkpoint_layers(const motet_checkpoint* checkpoint);
MOTET_API int64_t motet_checkpoint_layer_number(const motet_checkpoint* checkpoint, int64_t i);

typedef struct motet_layer_info {
  size_t size;
  int64_t layer, hidden, latent, intermediate, experts, top_k, shared_intermediate;
  int64_t bytes, bytes_per_token, parameters, parameters_per_token;
} motet_layer_info;
#define MOTET_LAYER_INFO_INIT {sizeof(motet_layer_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
MOTET_API motet_status motet_checkpoint_layer_info(const motet_checkpoint* checkpoint, int64_t layer, motet_layer_info* out);

/* ---- plan ---- */

typedef struct motet_deployment {
  size_t size;
  int64_t tokens;                /* most tokens of one forward; >= 1 */
  int64_t tp, ep;                /* 0 means 1 */
  motet_dtype input;             /* dtype of hidden states and output */
  motet_arithmetic arithmetic;
  int64_t memory_limit;          /* bytes; 0 = what the machine has */
  const char* backend;           /* NULL or "" = best */
  const char* target;            /* NULL or "" = best */
  int32_t threads;               /* 0 = all that this process may use */
  int32_t invariant;             /* 0 or 1 */
  int32_t allow_substitution;    /* 0 or 1 */
  motet_residence residence;
  int64_t chunk_tokens;          /* most tokens that run at once: a forward of more takes them chunk by chunk; 0 = all */
} motet_deployment;
#define MOTET_DEPLOYMENT_INIT {sizeof(motet_deployment), 1, 1, 1, MOTET_BF16, MOTET_ARITHMETIC_BF16, 0, NULL, NULL, 0, 0, 0, 0, 0}

/* Plans one MoE layer of a checkpoint for this machine. Every refusal is in motet_last_error(). */
MOTET_API motet_status motet_plan_create(const motet_checkpoint* checkpoint, int64_t layer, const motet_deployment* deployment, motet_plan** out);
MOTET_API void motet_plan_release(motet_plan* plan);
/* The plan as JSON (schema "motet.plan/1"), UTF-8, NUL-terminated; valid until the plan is released. */
MOTET_API const char* motet_plan_json(const motet_plan* plan);
/* 32 hexadecimal digits; valid until the plan is released. */
MOTET_API const char* motet_plan_fingerprint(const motet_plan* plan);

/* Shape, stride and dtype of a forward result for `tokens` tokens: what a fake (meta) operator needs. Strides in elements. */
typedef struct motet_output_type {
  size_t size;
  motet_dtype dtype;
  int32_t reserved;
  int64_t rows, cols, row_stride, col_stride;
} motet_output_type;
#define MOTET_OUTPUT_TYPE_INIT {sizeof(motet_output_type), 0, 0, 0, 0, 0, 0}
MOTET_API motet_status motet_plan_output(const motet_plan* plan, int64_t tokens, motet_output_type* out);

/* ---- layer ---- */

/* Maps and checks the layer's weights, allocates the workspace, starts the threads. */
MOTET_API motet_status motet_layer_create(const motet_checkpoint* checkpoint, const motet_plan* plan, motet_layer** out);
MOTET_API void motet_layer_release(motet_layer* layer);

typedef struct motet_forward {
  size_t size;
  int64_t tokens;
  const void* hidden_states;     /* [tokens, hidden], row-major, the deployment's dtype */
  void* output;                  /* [tokens, hidden], the same dtype */
  const float* router_logits;    /* NULL or [tokens, experts + zero experts] */
  const int32_t* given_index;    /* NULL or [tokens, top_k]: routing is given, with given_weights */
  const float* given_weights;    /* NULL or [tokens, top_k] */
  const int64_t* token_ids;      /* NULL or [tokens]; needed by hash routing */
  int32_t* top_k_index;          /* NULL or [tokens, top_k] out */
  float* top_k_weights;          /* NULL or [tokens, top_k] out */
  int32_t absent_id;             /* the id in given_index that means "no expert"; MOTET_FORWARD_INIT sets -1 */
  int32_t reserved;              /* 0 */
} motet_forward;
#define MOTET_FORWARD_INIT {sizeof(motet_forward), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, -1, 0}

/* Runs the layer. A call that succeeds allocates nothing; one that is refused leaves output untouched. */
MOTET_API motet_status motet_layer_forward(motet_layer* layer, const motet_forward* forward);

#ifdef __cplusplus
}
#endif
#endif /* MOTET_MOTET_H */
