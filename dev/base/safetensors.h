// The safetensors file format: 8 bytes little-endian header length, a JSON header, raw tensors.
// https://github.com/huggingface/safetensors
#ifndef BASE_SAFETENSORS_H
#define BASE_SAFETENSORS_H

#include "file.h"
#include "metadata.h"
#include "real.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_INDEX ".safetensors.index.json"

enum { TENSOR_MAX_RANK = 8 };

typedef enum {
    TENSOR_F64,
    TENSOR_F32,
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_I64,
    TENSOR_I32,
    TENSOR_U8,
    TENSOR_BOOL
} TensorType;

typedef struct {
    char *name;
    TensorType type;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    size_t count;     // elements
    const void *data; // little-endian, perhaps unaligned
    void *own;        // the same where it is not in the file; NULL
} Tensor;

typedef struct Safetensors {
    FileMap file;
    Tensor *tensors;  // (tensor_count) in the order of the data
    Tensor **by_name; // (tensor_count) in the order of the names
    int tensor_count;
    Metadata *metadata;
    int metadata_count;
    bool has_checksums;
    struct Safetensors **parts; // (part_count) the files that an index names; NULL: it is one file
    int part_count;
} Safetensors;

// Maps PATH and checks everything before it is used: header length, JSON, types, shapes (product
// overflow), offsets inside the file, no overlap and no hole, sizes that match type and shape, and
// the checksums of header and tensors where the file has them. Ends the program otherwise.
// An index (its name ends in SAFETENSORS_INDEX) opens all the files next to it whose tensors it
// lists.
Safetensors *safetensors_open(const char *path);
Safetensors *safetensors_try_open(const char *path); // the same; NULL if there is no such file
void safetensors_close(Safetensors *file);

// Gives a tensor another first dimension and other data: fresh memory, which it takes over.
void tensor_replace(Tensor *tensor, int64_t first, real *data);

// Orders by_name again, for code that renames tensors.
void safetensors_index(Safetensors *file);

const Tensor *safetensors_find(const Safetensors *file, const char *name);  // NULL: none
const char *safetensors_metadata(const Safetensors *file, const char *key); // NULL: none

// A finite number of the metadata; ends the program if it is missing or not one.
double safetensors_number(const Safetensors *file, const char *key);

// An integer of the metadata; ends the program if it is missing or outside min .. max.
int64_t safetensors_integer(const Safetensors *file, const char *key, int64_t min, int64_t max);

size_t tensor_bytes(const Tensor *tensor); // of its data

// Converts all elements. tensor_read_real takes F64, F32, F16, BF16; tensor_read_int32 takes I32,
// I64 (range checked). Another type ends the program, naming file and tensor.
void tensor_read_real(const Safetensors *file, const Tensor *tensor, real *out);
void tensor_read_double(const Safetensors *file, const Tensor *tensor, double *out);
void tensor_read_int32(const Safetensors *file, const Tensor *tensor, int32_t *out);

// One tensor to be written, from `real` values, always as F32.
typedef struct {
    const char *name;
    int rank;
    const int64_t *shape;
    const real *data;
} TensorSource;

// Writes PATH atomically (file.h): tensors in the order given, metadata strings under
// "__metadata__", and there the checksums (checksum.h) of the header, "checksum", and of each
// tensor's bytes, "checksum.NAME". Reading checks these, and leaves them out of the metadata.
void safetensors_write(const char *path, const TensorSource *tensors, int tensor_count,
                       const Metadata *metadata, int metadata_count);

#endif
