#include "safetensors.h"
#include "bytes.h"
#include "checksum.h"
#include "error.h"
#include "json.h"
#include "memory.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are read and written as they lie in memory");

enum { LENGTH_BYTES = 8, HEADER_MAX = 100000000 }; // limit of the format

// Metadata written by this program begins with the header's checksum, computed with its own digits
// as zeros. "checksum.NAME" is the checksum of a tensor's bytes.
#define CHECKSUM_KEY "checksum"
#define CHECKSUM_ZEROS "0000000000000000"
static const char checksum_prefix[] = CHECKSUM_KEY ".";
static const char header_start[] = "{\"__metadata__\":{\"" CHECKSUM_KEY "\":\"";
enum {
    DIGITS = sizeof(CHECKSUM_ZEROS) - 1,
    DIGITS_BEGIN = LENGTH_BYTES + sizeof(header_start) - 1 // offset in the file
};

static void write_digits(uint64_t checksum, char digits[DIGITS + 1]) {
    snprintf(digits, DIGITS + 1, "%016llx", (unsigned long long)checksum);
}

static const struct {
    const char *name;
    size_t width; // bytes per element
} types[] = {[TENSOR_F64] = {"F64", 8},   [TENSOR_F32] = {"F32", 4},  [TENSOR_F16] = {"F16", 2},
             [TENSOR_BF16] = {"BF16", 2}, [TENSOR_I64] = {"I64", 8},  [TENSOR_I32] = {"I32", 4},
             [TENSOR_U8] = {"U8", 1},     [TENSOR_BOOL] = {"BOOL", 1}};
enum { TYPE_COUNT = sizeof(types) / sizeof(*types) };

// ---- reader -----------------------------------------------------------------
// The context for reading one tensor's part of the header.
typedef struct {
    const char *path, *name; // for messages
    const unsigned char *data;
    size_t size; // of the data of all tensors
} Section;

// Reads a member of a tensor's header, an array of at most `max` integers. Returns their number.
static int read_integers(const Section *section, const Json *header, const char *key, int max,
                         int64_t *out) {
    const Json *array = json_find(header, key);
    if (!array || array->kind != JSON_ARRAY)
        fail("%s: tensor \"%s\": expected an array \"%s\"", section->path, section->name, key);
    if (array->count > (size_t)max)
        fail("%s: tensor \"%s\": \"%s\" has %zu numbers, expected at most %d", section->path,
             section->name, key, array->count, max);
    for (size_t i = 0; i < array->count; i++) {
        const double number = array->items[i].number;
        // From 2^53 on a double, and thus JSON, is not exact.
        if (array->items[i].kind != JSON_NUMBER || !(number >= 0 && number < 0x1p53) ||
            number != floor(number))
            fail("%s: tensor \"%s\": \"%s\": expected integers from 0 to 2^53", section->path,
                 section->name, key);
        out[i] = (int64_t)number;
    }
    return (int)array->count;
}

static TensorType read_type(const Section *section, const Json *header) {
    char *source = format_string("%s: tensor \"%s\"", section->path, section->name);
    const char *name = json_string(header, "dtype", source);
    int type = 0;
    while (type < TYPE_COUNT && strcmp(types[type].name, name) != 0) type++;
    if (type == TYPE_COUNT)
        fail(
            "%s: dtype \"%s\" is not supported, expected F64, F32, F16, BF16, I64, I32, U8 or BOOL",
            source, name);
    free(source);
    return (TensorType)type;
}

static Tensor read_tensor(const Section *section, const Json *header) {
    Tensor tensor = {
        .name = copy_string(section->name), .type = read_type(section, header), .count = 1};
    tensor.rank = read_integers(section, header, "shape", TENSOR_MAX_RANK, tensor.shape);
    size_t bytes = types[tensor.type].width;
    bool overflow = false;
    for (int i = 0; i < tensor.rank; i++) {
        overflow |= __builtin_mul_overflow(tensor.count, (size_t)tensor.shape[i], &tensor.count);
        overflow |= __builtin_mul_overflow(bytes, (size_t)tensor.shape[i], &bytes);
    }
    if (overflow)
        fail("%s: tensor \"%s\": the shape's product overflows", section->path, section->name);
    int64_t offsets[2];
    if (read_integers(section, header, "data_offsets", 2, offsets) != 2)
        fail("%s: tensor \"%s\": expected two numbers in \"data_offsets\"", section->path,
             section->name);
    const size_t begin = (size_t)offsets[0], end = (size_t)offsets[1];
    if (begin > end || end > section->size)
        fail("%s: tensor \"%s\": data_offsets %zu to %zu, expected them in order and at most %zu, "
             "the size of the data",
             section->path, section->name, begin, end, section->size);
    if (end - begin != bytes)
        fail("%s: tensor \"%s\": data_offsets span %zu bytes, its shape takes %zu", section->path,
             section->name, end - begin, bytes);
    tensor.data = section->data + begin;
    return tensor;
}

// Returns the tensor whose checksum this metadata key holds, or NULL for another key.
static const char *checksum_name(const char *key) {
    const size_t length = sizeof(checksum_prefix) - 1;
    return strncmp(key, checksum_prefix, length) == 0 ? key + length : NULL;
}

static void read_metadata(Safetensors *file, const Json *object) {
    if (object->kind == JSON_NULL) return;
    if (object->kind != JSON_OBJECT) fail("%s: __metadata__ is not an object", file->file.path);
    for (size_t i = 0; i < object->count; i++) {
        const char *key = object->keys[i];
        if (object->items[i].kind != JSON_STRING)
            fail("%s: __metadata__: \"%s\" is not a string", file->file.path, key);
        if (strcmp(key, CHECKSUM_KEY) != 0 && !checksum_name(key))
            metadata_add(&file->metadata, &file->metadata_count, key,
                         copy_string(object->items[i].string));
    }
}

static void compare_checksums(const char *path, const char *what, uint64_t found,
                              const char *expected) {
    char digits[DIGITS + 1];
    write_digits(found, digits);
    if (strcmp(digits, expected) != 0)
        fail("%s: is damaged: the checksum of %s is %s, expected %s", path, what, digits, expected);
}

// Returns whether the header has a checksum of its own. Exits with an error if it is wrong.
static bool check_header(const FileMap *file, size_t length) {
    if (length < DIGITS_BEGIN + DIGITS - LENGTH_BYTES ||
        memcmp(file->data + LENGTH_BYTES, header_start, sizeof(header_start) - 1) != 0)
        return false;
    char expected[DIGITS + 1] = "", *header = allocate(LENGTH_BYTES + length, 1, "a header");
    memcpy(header, file->data, LENGTH_BYTES + length);
    memcpy(expected, header + DIGITS_BEGIN, DIGITS);
    memcpy(header + DIGITS_BEGIN, CHECKSUM_ZEROS, DIGITS);
    compare_checksums(file->path, "its header", checksum_of(header, LENGTH_BYTES + length),
                      expected);
    free(header);
    return true;
}

// Compares the tensors with the checksums in the metadata. Files of other programs have none.
static void check_tensors(const Safetensors *file, const Json *metadata) {
    for (size_t i = 0; metadata && i < metadata->count; i++) {
        const char *name = checksum_name(metadata->keys[i]);
        if (!name) continue;
        const Tensor *tensor = safetensors_find(file, name);
        if (!file->has_checksums || !tensor)
            fail("%s: is damaged, or another program changed it and kept its checksums: metadata "
                 "\"%s\" has no %s",
                 file->file.path, metadata->keys[i], tensor ? "checksum of the header" : "tensor");
        char *what = format_string("tensor \"%s\"", name);
        compare_checksums(file->file.path, what, checksum_of(tensor->data, tensor_bytes(tensor)),
                          metadata->items[i].string);
        free(what);
    }
}

// Sorts by position of the data. If two begin at the same byte, one is empty and comes first.
static int compare_tensors(const void *a, const void *b) {
    const Tensor *x = a, *y = b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->count > y->count) - (x->count < y->count);
}

// Checks that the tensors, in the order of the data, fill it exactly.
static void check_layout(const Safetensors *file, const Section *section) {
    size_t end = 0;
    for (int i = 0; i < file->tensor_count; i++) {
        const Tensor *tensor = &file->tensors[i];
        const size_t begin = (size_t)((const unsigned char *)tensor->data - section->data);
        if (begin != end)
            fail("%s: tensor \"%s\" begins at byte %zu of the data, expected %zu: %s",
                 section->path, tensor->name, begin, end,
                 begin < end ? "it overlaps another" : "there is a hole");
        end += tensor_bytes(tensor);
    }
    if (end != section->size)
        fail("%s: the tensors take %zu bytes, the file has %zu", section->path, end, section->size);
}

// Returns the header's length, checked against the size of the file.
static size_t read_header_length(const FileMap *file) {
    static const char pointer[] = "version https://git-lfs";
    uint64_t length;
    if (file->size < LENGTH_BYTES)
        fail("%s: %zu bytes, too short for a safetensors file", file->path, file->size);
    if (file->size >= sizeof(pointer) && memcmp(file->data, pointer, sizeof(pointer) - 1) == 0)
        fail("%s: is git-lfs's pointer to the file; download the file itself (git lfs pull)",
             file->path);
    memcpy(&length, file->data, sizeof(length));
    if (length > HEADER_MAX || length > file->size - LENGTH_BYTES)
        fail("%s: not a safetensors file, or cut short: header of %llu bytes in a file of %zu (at "
             "most %d)",
             file->path, (unsigned long long)length, file->size, HEADER_MAX);
    return (size_t)length;
}

// Reads a mapped file.
static Safetensors *open_map(FileMap map) {
    Safetensors *file = allocate(1, sizeof(Safetensors), "a safetensors file");
    const char *path = map.path;
    file->file = map;
    const size_t length = read_header_length(&file->file);
    file->has_checksums = check_header(&file->file, length);
    Section section = {.path = path,
                       .data = file->file.data + LENGTH_BYTES + length,
                       .size = file->file.size - LENGTH_BYTES - length};
    char *source = format_string("%s: header", path);
    Json *header = json_parse((const char *)file->file.data + LENGTH_BYTES, length, source);
    if (header->kind != JSON_OBJECT) fail("%s: expected a JSON object", source);
    file->tensors = allocate(header->count, sizeof(Tensor), "tensors");
    for (size_t i = 0; i < header->count; i++) {
        section.name = header->keys[i];
        if (strcmp(section.name, "__metadata__") == 0)
            read_metadata(file, &header->items[i]);
        else
            file->tensors[file->tensor_count++] = read_tensor(&section, &header->items[i]);
    }
    qsort(file->tensors, (size_t)file->tensor_count, sizeof(Tensor), compare_tensors);
    check_layout(file, &section);
    safetensors_index(file);
    check_tensors(file, json_find(header, "__metadata__"));
    json_free(header);
    free(source);
    return file;
}

// Returns a file of an index by its name, and opens it on first use.
static const Safetensors *part_of(Safetensors *index, const Json *name) {
    const char *path = index->file.path;
    if (name->kind != JSON_STRING || strchr(name->string, '/') || !*name->string)
        fail("%s: weight_map names something other than a file next to it", path);
    for (int i = 0; i < index->part_count; i++)
        if (strcmp(path_name(index->parts[i]->file.path), name->string) == 0)
            return index->parts[i];
    char *part = path_beside(path, name->string);
    index->parts = grow_list(index->parts, (size_t)index->part_count, sizeof(Safetensors *),
                             "a safetensors file");
    index->parts[index->part_count++] = open_map(file_map(part));
    free(part);
    return index->parts[index->part_count - 1];
}

// Reads an index: {"weight_map": {"TENSOR": "FILE", ...}}.
static Safetensors *open_index(FileMap map) {
    Safetensors *file = allocate(1, sizeof(Safetensors), "a safetensors file");
    file->file = map;
    Json *root = json_parse((const char *)map.data, map.size, map.path);
    const Json *names = json_find(root, "weight_map");
    if (!names || names->kind != JSON_OBJECT || names->count > INT32_MAX)
        fail("%s: expected \"weight_map\" to be an object", map.path);
    file->tensors = allocate(names->count, sizeof(Tensor), "tensors");
    for (size_t i = 0; i < names->count; i++) {
        const Safetensors *part = part_of(file, &names->items[i]);
        const Tensor *tensor = safetensors_find(part, names->keys[i]);
        if (!tensor)
            fail("%s: has no tensor %s, which %s lists", part->file.path, names->keys[i], map.path);
        file->tensors[i] = *tensor;
        file->tensors[i].name = copy_string(tensor->name);
    }
    file->tensor_count = (int)names->count;
    int all = 0;
    for (int i = 0; i < file->part_count; i++) all += file->parts[i]->tensor_count;
    if (all != file->tensor_count)
        fail("%s: names %d tensors, its files have %d", map.path, file->tensor_count, all);
    safetensors_index(file);
    json_free(root);
    return file;
}

static Safetensors *open_any(FileMap map) {
    return path_ends_in(map.path, SAFETENSORS_INDEX) ? open_index(map) : open_map(map);
}

Safetensors *safetensors_open(const char *path) {
    return open_any(file_map(path));
}

Safetensors *safetensors_try_open(const char *path) {
    FileMap map;
    return file_try_map(path, &map) ? open_any(map) : NULL;
}

void safetensors_close(Safetensors *file) {
    if (!file) return;
    for (int i = 0; i < file->tensor_count; i++) {
        free(file->tensors[i].name);
        free(file->tensors[i].own);
    }
    metadata_free(file->metadata, file->metadata_count);
    free(file->tensors);
    free(file->by_name);
    for (int i = 0; i < file->part_count; i++) safetensors_close(file->parts[i]);
    free(file->parts);
    file_unmap(&file->file);
    free(file);
}

void tensor_replace(Tensor *tensor, int64_t first, real *data) {
    tensor->count = tensor->count / (size_t)tensor->shape[0] * (size_t)first;
    tensor->shape[0] = first;
    tensor->type = sizeof(real) == sizeof(double) ? TENSOR_F64 : TENSOR_F32;
    free(tensor->own);
    tensor->data = tensor->own = data;
}

// Sorts by name; equal names by position of the data.
static int compare_names(const void *a, const void *b) {
    const Tensor *x = *(const Tensor *const *)a, *y = *(const Tensor *const *)b;
    const int order = strcmp(x->name, y->name);
    return order ? order : (x > y) - (x < y);
}

void safetensors_index(Safetensors *file) {
    free(file->by_name);
    file->by_name = allocate((size_t)file->tensor_count, sizeof(Tensor *), "tensors");
    for (int i = 0; i < file->tensor_count; i++) file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, (size_t)file->tensor_count, sizeof(Tensor *), compare_names);
}

static int compare_name(const void *name, const void *tensor) {
    return strcmp(name, (*(const Tensor *const *)tensor)->name);
}

const Tensor *safetensors_find(const Safetensors *file, const char *name) {
    const Tensor *const *found =
        bsearch(name, file->by_name, (size_t)file->tensor_count, sizeof(Tensor *), compare_name);
    return found ? *found : NULL;
}

const char *safetensors_metadata(const Safetensors *file, const char *key) {
    for (int i = 0; i < file->metadata_count; i++)
        if (strcmp(file->metadata[i].key, key) == 0) return file->metadata[i].value;
    return NULL;
}

// Returns a metadata value; exits with an error if it is missing.
static const char *needed_metadata(const Safetensors *file, const char *key) {
    const char *text = safetensors_metadata(file, key);
    if (!text) fail("%s: metadata has no %s", file->file.path, key);
    return text;
}

double safetensors_number(const Safetensors *file, const char *key) {
    const char *text = needed_metadata(file, key);
    char *end;
    const double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value))
        fail("%s: metadata %s is \"%s\", expected a number", file->file.path, key, text);
    return value;
}

int64_t safetensors_integer(const Safetensors *file, const char *key, int64_t min, int64_t max) {
    const char *text = needed_metadata(file, key);
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < min || value > max)
        fail("%s: metadata %s is \"%s\", expected an integer from %lld to %lld", file->file.path,
             key, text, (long long)min, (long long)max);
    return value;
}

// ---- elements ---------------------------------------------------------------

size_t tensor_bytes(const Tensor *tensor) {
    return tensor->count * types[tensor->type].width;
}

// IEEE 754 binary16: 1 sign, 5 exponent and 10 mantissa bits.
static double half_value(uint16_t bits) {
    const int exponent = bits >> 10 & 0x1f, mantissa = bits & 0x3ff;
    double value;
    if (exponent == 31)
        value = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, -24);
    else
        value = ldexp(1024 + mantissa, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

// bfloat16: the upper half of a float.
static double bfloat16_value(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return (double)value;
}

// Returns element i of a floating-point tensor. A double holds all types exactly. Uses memcpy
// because the data may be unaligned.
static double element(const Tensor *tensor, size_t i) {
    const unsigned char *at = (const unsigned char *)tensor->data + i * types[tensor->type].width;
    double f64;
    float f32;
    uint16_t bits;
    switch (tensor->type) {
    case TENSOR_F64:
        memcpy(&f64, at, sizeof(f64));
        return f64;
    case TENSOR_F32:
        memcpy(&f32, at, sizeof(f32));
        return (double)f32;
    case TENSOR_F16:
        memcpy(&bits, at, sizeof(bits));
        return half_value(bits);
    default:
        memcpy(&bits, at, sizeof(bits));
        return bfloat16_value(bits);
    }
}

static _Noreturn void wrong_type(const Safetensors *file, const Tensor *tensor,
                                 const char *expected) {
    fail("%s: tensor \"%s\" has type %s, expected %s", file->file.path, tensor->name,
         types[tensor->type].name, expected);
}

static void require_floating(const Safetensors *file, const Tensor *tensor) {
    const TensorType type = tensor->type;
    if (type != TENSOR_F64 && type != TENSOR_F32 && type != TENSOR_F16 && type != TENSOR_BF16)
        wrong_type(file, tensor, "F64, F32, F16 or BF16");
}

void tensor_read_real(const Safetensors *file, const Tensor *tensor, real *out) {
    require_floating(file, tensor);
    for (size_t i = 0; i < tensor->count; i++) out[i] = (real)element(tensor, i);
}

void tensor_read_double(const Safetensors *file, const Tensor *tensor, double *out) {
    require_floating(file, tensor);
    for (size_t i = 0; i < tensor->count; i++) out[i] = element(tensor, i);
}

void tensor_read_int32(const Safetensors *file, const Tensor *tensor, int32_t *out) {
    if (tensor->type == TENSOR_I32) {
        if (tensor->count > 0) memcpy(out, tensor->data, tensor->count * sizeof(int32_t));
        return;
    }
    if (tensor->type != TENSOR_I64) wrong_type(file, tensor, "I32 or I64");
    for (size_t i = 0; i < tensor->count; i++) {
        int64_t value;
        memcpy(&value, (const unsigned char *)tensor->data + i * sizeof(value), sizeof(value));
        if (value < INT32_MIN || value > INT32_MAX)
            fail("%s: tensor \"%s\": element %zu is %lld, beyond 32 bits", file->file.path,
                 tensor->name, i, (long long)value);
        out[i] = (int32_t)value;
    }
}

// ---- writer -----------------------------------------------------------------

static size_t source_count(const TensorSource *tensor) {
    size_t count = 1;
    for (int i = 0; i < tensor->rank; i++)
        count *= (size_t)tensor->shape[i]; // cannot overflow: the values are in memory
    return count;
}

// Appends the entry of a tensor whose data begins at byte `begin`; returns where the data ends.
static size_t write_entry(JsonWriter *w, const TensorSource *tensor, size_t begin) {
    const size_t end = begin + source_count(tensor) * sizeof(float);
    json_open(w, tensor->name, '{');
    json_add_string(w, "dtype", types[TENSOR_F32].name);
    json_open(w, "shape", '[');
    for (int i = 0; i < tensor->rank; i++) json_write_integer(w, tensor->shape[i]);
    json_end(w, ']');
    json_open(w, "data_offsets", '[');
    json_write_integer(w, (int64_t)begin);
    json_write_integer(w, (int64_t)end);
    json_end(w, ']');
    json_end(w, '}');
    return end;
}

// Writes the values as they are stored, block by block, to `out` and into the checksum; either may
// be NULL.
static void write_values(const TensorSource *tensor, AtomicFile *out, Checksum *checksum) {
    enum { BLOCK = 1024 };
    float block[BLOCK];
    const size_t count = source_count(tensor);
    for (size_t start = 0; start < count; start += BLOCK) {
        const size_t part = count - start < BLOCK ? count - start : BLOCK;
        for (size_t i = 0; i < part; i++) block[i] = (float)tensor->data[start + i];
        if (checksum) checksum_add(checksum, block, part * sizeof(float));
        if (out) atomic_write(out, block, part * sizeof(float));
    }
}

static void write_metadata(JsonWriter *w, const TensorSource *tensors, int tensor_count,
                           const Metadata *metadata, int metadata_count) {
    json_open(w, "__metadata__", '{');
    json_add_string(w, CHECKSUM_KEY, CHECKSUM_ZEROS);
    for (int i = 0; i < metadata_count; i++) json_add_string(w, metadata[i].key, metadata[i].value);
    for (int i = 0; i < tensor_count; i++) {
        Checksum checksum = checksum_begin();
        write_values(&tensors[i], NULL, &checksum);
        char digits[DIGITS + 1], *key = format_string("%s%s", checksum_prefix, tensors[i].name);
        write_digits(checksum_end(&checksum), digits);
        json_add_string(w, key, digits);
        free(key);
    }
    json_end(w, '}');
}

static void write_header(AtomicFile *out, const TensorSource *tensors, int tensor_count,
                         const Metadata *metadata, int metadata_count) {
    JsonWriter w = {0};
    json_begin(&w, '{');
    write_metadata(&w, tensors, tensor_count, metadata, metadata_count);
    size_t end = 0;
    for (int i = 0; i < tensor_count; i++) end = write_entry(&w, &tensors[i], end);
    json_end(&w, '}');
    const size_t padding = -w.length % LENGTH_BYTES; // the data starts at a multiple of 8
    const uint64_t length = w.length + padding;
    Bytes header = {0};
    bytes_append(&header, &length, sizeof(length));
    bytes_append(&header, w.text, w.length);
    bytes_append(&header, "       ", padding);
    char digits[DIGITS + 1];
    write_digits(checksum_of(header.data, header.size), digits);
    memcpy(header.data + DIGITS_BEGIN, digits, DIGITS);
    atomic_write(out, header.data, header.size);
    bytes_free(&header);
    json_writer_free(&w);
}

void safetensors_write(const char *path, const TensorSource *tensors, int tensor_count,
                       const Metadata *metadata, int metadata_count) {
    AtomicFile *out = atomic_open(path);
    write_header(out, tensors, tensor_count, metadata, metadata_count);
    for (int i = 0; i < tensor_count; i++) write_values(&tensors[i], out, NULL);
    atomic_commit(out);
}
