// The safetensors file format: an 8-byte little-endian header length, a JSON header, raw tensors.
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
    const void *data; // little-endian, may be unaligned
    void *own;        // equals `data` if that is not in the file; else NULL
} Tensor;

typedef struct Safetensors {
    FileMap file;
    Tensor *tensors;  // (tensor_count) in the order of the data
    Tensor **by_name; // (tensor_count) sorted by name
    int tensor_count;
    Metadata *metadata;
    int metadata_count;
    bool has_checksums;
    struct Safetensors **parts; // (part_count) the files of an index; NULL: a single file
    int part_count;
} Safetensors;

// Maps PATH and checks everything before use: header length, JSON, types, shapes (product
// overflow), offsets inside the file without overlaps or holes, sizes that match type and shape,
// and the checksums of header and tensors if the file has them. Exits with an error if a check
// fails.
// For an index (its name ends in SAFETENSORS_INDEX), opens all the files next to it that it lists.
Safetensors *safetensors_open(const char *path);
Safetensors *safetensors_try_open(const char *path); // the same; NULL if it does not exist
void safetensors_close(Safetensors *file);

// Replaces the first dimension and the data of a tensor. Takes ownership of `data`.
void tensor_replace(Tensor *tensor, int64_t first, real *data);

// Sorts by_name again. For code that renames tensors.
void safetensors_index(Safetensors *file);

const Tensor *safetensors_find(const Safetensors *file, const char *name);  // NULL: none
const char *safetensors_metadata(const Safetensors *file, const char *key); // NULL: none

// Returns a finite number from the metadata; exits with an error if it is missing or invalid.
double safetensors_number(const Safetensors *file, const char *key);

// Returns an integer from the metadata; exits with an error if it is missing or outside min .. max.
int64_t safetensors_integer(const Safetensors *file, const char *key, int64_t min, int64_t max);

size_t tensor_bytes(const Tensor *tensor); // size of its data

// Convert all elements. tensor_read_real() and tensor_read_double() accept F64, F32, F16 and BF16;
// tensor_read_int32() accepts I32 and I64 (range checked). On another type they exit with an error
// that names file and tensor.
void tensor_read_real(const Safetensors *file, const Tensor *tensor, real *out);
void tensor_read_double(const Safetensors *file, const Tensor *tensor, double *out);
void tensor_read_int32(const Safetensors *file, const Tensor *tensor, int32_t *out);

// A tensor to be written, from `real` values, always as F32.
typedef struct {
    const char *name;
    int rank;
    const int64_t *shape;
    const real *data;
} TensorSource;

// Writes PATH atomically (file.h): the tensors in the given order, and under "__metadata__" the
// metadata strings and the checksums (checksum.h) of the header, "checksum", and of each tensor's
// bytes, "checksum.NAME". Reading verifies these and removes them from the metadata.
void safetensors_write(const char *path, const TensorSource *tensors, int tensor_count,
                       const Metadata *metadata, int metadata_count);

#endif
