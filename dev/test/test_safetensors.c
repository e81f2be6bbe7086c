#include "memory.h"
#include "safetensors.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Writes a file: header length, header and data; a length of -1 is the header's actual length.
static const char *make_file(const char *name, const char *header, int64_t length, const void *data,
                             size_t size) {
    const size_t header_size = strlen(header);
    char *bytes = allocate(8 + header_size + size, 1, "a test");
    const uint64_t stored = length < 0 ? header_size : (uint64_t)length;
    memcpy(bytes, &stored, 8);
    memcpy(bytes + 8, header, header_size);
    memcpy(bytes + 8 + header_size, data, size);
    const char *path = test_file(name, bytes, 8 + header_size + size);
    free(bytes);
    return path;
}

// ---- writing and reading ----------------------------------------------------

static void test_round_trip(void) {
    enum { BIG = 5003 };
    real *big = allocate(BIG, sizeof(real), "a test");
    for (int i = 0; i < BIG; i++) big[i] = (real)(i * 0.25 - 600);
    const real small[6] = {1, -2, (real)0.1, (real)1e-40, INFINITY, (real)-0.0}, scalar[1] = {7};
    const TensorSource sources[] = {{"z.small", 2, (int64_t[]){2, 3}, small},
                                    {"scalar", 0, NULL, scalar},
                                    {"a.big", 1, (int64_t[]){BIG}, big},
                                    {"empty", 2, (int64_t[]){4, 0}, big}};
    const Metadata metadata[] = {{"model", "fastformer"}, {"note", "a \"quoted\"\nline"}};
    char *path = format_string("%s/out.safetensors", test_directory());
    safetensors_write(path, sources, 4, metadata, 2);

    Safetensors *file = safetensors_open(path);
    CHECK(file->tensor_count == 4 && file->metadata_count == 2);
    CHECK_TEXT(safetensors_metadata(file, "note"), "a \"quoted\"\nline");
    CHECK(safetensors_metadata(file, "none") == NULL && safetensors_find(file, "none") == NULL);
    CHECK_TEXT(file->tensors[0].name, "z.small"); // in data order
    const Tensor *t = safetensors_find(file, "z.small");
    real out[BIG];
    tensor_read_real(file, t, out);
    CHECK(t->rank == 2 && t->shape[0] == 2 && t->shape[1] == 3 && t->count == 6 &&
          t->type == TENSOR_F32);
    for (int i = 0; i < 6; i++) CHECK((float)out[i] == (float)small[i]);
    CHECK(signbit(out[5]));
    t = safetensors_find(file, "scalar");
    tensor_read_real(file, t, out);
    CHECK(t->rank == 0 && t->count == 1 && out[0] == 7);
    t = safetensors_find(file, "a.big");
    tensor_read_real(file, t, out);
    for (int i = 0; i < BIG; i++) CHECK(out[i] == big[i]);
    CHECK(safetensors_find(file, "empty")->count == 0);
    CHECK((file->file.size - (6 + 1 + BIG) * sizeof(float)) % 8 == 0); // the data is aligned
    safetensors_close(file);
    safetensors_close(NULL);
    free(path);
    free(big);
}

// Other writers leave null if there is no metadata.
static void test_null_metadata(void) {
    Safetensors *file = safetensors_open(make_file("null", "{\"__metadata__\":null}", -1, "", 0));
    CHECK(file->metadata_count == 0);
    safetensors_close(file);
}

static void test_no_tensors(void) {
    char *path = format_string("%s/out", test_directory());
    safetensors_write(path, NULL, 0, NULL, 0);
    Safetensors *file = safetensors_open(path);
    CHECK(file->tensor_count == 0 && file->metadata_count == 0);
    safetensors_close(file);
    free(path);
}

// Returns the bytes of a small file as the program writes it, as a new array.
static unsigned char *written_bytes(size_t *size) {
    const real values[] = {1, -2, (real)0.1};
    const TensorSource sources[] = {{"one", 1, (int64_t[]){2}, values},
                                    {"two", 0, NULL, values + 2}};
    const Metadata metadata[] = {{"step", "7"}};
    char *path = format_string("%s/written", test_directory());
    safetensors_write(path, sources, 2, metadata, 1);
    FileMap map = file_map(path);
    unsigned char *bytes = allocate(map.size, 1, "a test");
    memcpy(bytes, map.data, *size = map.size);
    file_unmap(&map);
    free(path);
    return bytes;
}

static void opens(void *path) {
    safetensors_close(safetensors_open(path));
}

// Flips every bit of a file that the program wrote.
static void test_flipped_bits(void) {
    size_t size;
    unsigned char *bytes = written_bytes(&size);
    CHECK(test_child(opens, (void *)test_file("flipped", bytes, size), (char[64]){0}, 64) == 0);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        char text[1024];
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        const char *path = test_file("flipped", bytes, size);
        const int code = test_child(opens, (void *)path, text, sizeof(text));
        if (code != 1 || strncmp(text, "error: ", 7) != 0 || !strstr(text, "flipped"))
            test_fail(__FILE__, __LINE__, "bit %zu of byte %zu: code %d, stderr: %s", bit % 8,
                      bit / 8, code, text);
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    free(bytes);
}

// The message contains the file, the tensor, what was found and what was expected.
static void test_damaged_tensor(void) {
    size_t size;
    unsigned char *bytes = written_bytes(&size);
    bytes[size - 5] ^= 1; // in the first tensor
    CHECK_FAILS(opens, (void *)test_file("bad", bytes, size), 1,
                "bad: is damaged: the checksum of tensor \"one\" is ");
    bytes[size - 5] ^= 1;
    bytes[size - 1] ^= 1;
    CHECK_FAILS(opens, (void *)test_file("bad", bytes, size), 1, "of tensor \"two\" is ");
    bytes[size - 1] ^= 1;
    bytes[8] ^= 1;
    CHECK_FAILS(opens, (void *)test_file("bad", bytes, size), 1, "byte 0");
    free(bytes);
}

// A program that keeps metadata but does not know checksums.
static void test_kept_checksums(void) {
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"checksum.%s\":\"00\"},"
        "\"one\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    char *changed = format_string(header, "one"), *gone = format_string(header, "two");
    CHECK_FAILS(opens, (void *)make_file("bad", changed, -1, "", 0), 1,
                "another program changed it and kept its checksums");
    CHECK_FAILS(opens, (void *)make_file("bad", gone, -1, "", 0), 1,
                "\"checksum.two\" has no tensor");
    free(changed);
    free(gone);
}

static void write_nowhere(void *path) {
    safetensors_write(path, NULL, 0, NULL, 0);
}

static void test_write_fails(void) {
    char *path = format_string("%s/nowhere/out", test_directory());
    CHECK_FAILS(write_nowhere, path, 1, "cannot write: No such file");
    free(path);
}

// ---- types ------------------------------------------------------------------
// Reads a tensor of this type and these elements, at an odd address.
static void read_values(const char *type, const void *data, size_t count, size_t width,
                        double *out) {
    unsigned char bytes[257] = {0};
    char *header =
        format_string("{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                      "\"t\":{\"dtype\":\"%s\",\"shape\":[%zu],\"data_offsets\":[1,%zu]}}",
                      type, count, 1 + count * width);
    memcpy(bytes + 1, data, count * width);
    Safetensors *file = safetensors_open(make_file("typed", header, -1, bytes, 1 + count * width));
    const Tensor *tensor = safetensors_find(file, "t");
    real as_real[32];
    tensor_read_double(file, tensor, out);
    tensor_read_real(file, tensor, as_real);
    for (size_t i = 0; i < count; i++)
        CHECK(as_real[i] == (real)out[i] || (isnan(as_real[i]) && isnan(out[i])));
    safetensors_close(file);
    free(header);
}

static void test_f16(void) {
    const uint16_t bits[] = {0x0000, 0x8000, 0x3c00, 0xc000, 0x7bff, 0x0400,
                             0x03ff, 0x0001, 0x8001, 0x3555, 0x7c00, 0xfc00};
    const double expected[] = {0,           -0.0,    1,        -2,         65504,    0x1p-14,
                               0x1.ff8p-15, 0x1p-24, -0x1p-24, 0x1.554p-2, INFINITY, -INFINITY};
    double out[12];
    read_values("F16", bits, 12, 2, out);
    for (int i = 0; i < 12; i++)
        CHECK(out[i] == expected[i] && !signbit(out[i]) == !signbit(expected[i]));
    const uint16_t nan_bits[] = {0x7c01, 0xfe00};
    read_values("F16", nan_bits, 2, 2, out);
    CHECK(isnan(out[0]) && isnan(out[1]));
}

static void test_bf16(void) {
    const uint16_t bits[] = {0x0000, 0x3f80, 0xc000, 0x3eab, 0x0001,
                             0x0080, 0x7f7f, 0x7f80, 0xff80};
    const double expected[] = {0,        1,          -2,       0x1.56p-2, 0x1p-133,
                               0x1p-126, 0x1.fep127, INFINITY, -INFINITY};
    double out[9];
    read_values("BF16", bits, 9, 2, out);
    for (int i = 0; i < 9; i++) CHECK(out[i] == expected[i]);
    const uint16_t nan_bits[] = {0x7fc0, 0xff81};
    read_values("BF16", nan_bits, 2, 2, out);
    CHECK(isnan(out[0]) && isnan(out[1]));
}

static void test_f32_f64(void) {
    const float singles[] = {1.5f, -0x1p-149f, 3.4e38f, INFINITY};
    const double doubles[] = {1.5, 0.1, -1e-300, 1e300};
    double out[4];
    read_values("F32", singles, 4, 4, out);
    for (int i = 0; i < 4; i++) CHECK(out[i] == (double)singles[i]);
    read_values("F64", doubles, 4, 8, out);
    for (int i = 0; i < 4; i++) CHECK(out[i] == doubles[i]);
}

static void test_integers(void) {
    const char *header = "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                         "\"i\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[1,9]},"
                         "\"l\":{\"dtype\":\"I64\",\"shape\":[1,2],\"data_offsets\":[9,25]}}";
    const int32_t narrow[] = {-100, INT32_MAX};
    const int64_t wide[] = {INT32_MIN, INT32_MAX};
    unsigned char data[25] = {1};
    int32_t out[2];
    memcpy(data + 1, narrow, 8);
    memcpy(data + 9, wide, 16);
    Safetensors *file = safetensors_open(make_file("integers", header, -1, data, sizeof(data)));
    tensor_read_int32(file, safetensors_find(file, "i"), out);
    CHECK(out[0] == -100 && out[1] == INT32_MAX);
    tensor_read_int32(file, safetensors_find(file, "l"), out);
    CHECK(out[0] == INT32_MIN && out[1] == INT32_MAX);
    safetensors_close(file);
}

typedef struct {
    const char *path;
    int how; // 0: real, 1: double, 2: int32
} Reading;

static void reads(void *argument) {
    const Reading *reading = argument;
    Safetensors *file = safetensors_open(reading->path);
    if (reading->how == 0) tensor_read_real(file, &file->tensors[0], (real[1]){0});
    if (reading->how == 1) tensor_read_double(file, &file->tensors[0], (double[1]){0});
    if (reading->how == 2) tensor_read_int32(file, &file->tensors[0], (int32_t[1]){0});
}

static void test_wrong_type(void) {
    const char *i64 =
        make_file("i64", "{\"t\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}", -1,
                  (int64_t[]){-2147483649ll}, 8);
    const char *f64 =
        make_file("f64", "{\"t\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}", -1,
                  (double[]){1}, 8);
    CHECK_FAILS(reads, (&(Reading){i64, 2}), 1,
                "tensor \"t\": element 0 is -2147483649, beyond 32 bits");
    CHECK_FAILS(reads, (&(Reading){i64, 0}), 1,
                "tensor \"t\" has type I64, expected F64, F32, F16 or BF16");
    CHECK_FAILS(reads, (&(Reading){i64, 1}), 1, "has type I64");
    CHECK_FAILS(reads, (&(Reading){f64, 2}), 1, "tensor \"t\" has type F64, expected I32 or I64");
}

// ---- hostile files ----------------------------------------------------------

#define ONE(type, shape, offsets)                                                                  \
    "{\"t\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(first, second)                                                                         \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" first "},"                          \
    "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" second "}}"

// Each file has 8 bytes of data.
static void test_hostile_headers(void) {
    static const char *const headers[][2] = {
        {"", "header: byte 0: found the end"},
        {"{", "header: byte 1: found the end"},
        {"[]", "header: expected a JSON object"},
        {"{}", "the tensors take 0 bytes, the file has 8"},
        {"{\"t\":1}", "tensor \"t\": found a number, expected an object with \"dtype\""},
        {"{\"t\":{}}", "tensor \"t\": \"dtype\" is missing"},
        {ONE("F8_E4M3", "[8]", "[0,8]"),
         "tensor \"t\": dtype \"F8_E4M3\" is not supported, expected F64"},
        {ONE("f32", "[2]", "[0,8]"), "dtype \"f32\" is not supported"},
        {"{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", "expected an array \"shape\""},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2]}}", "expected an array \"data_offsets\""},
        {ONE("F32", "2", "[0,8]"), "expected an array \"shape\""},
        {ONE("F32", "[-2]", "[0,8]"), "\"shape\": expected integers"},
        {ONE("F32", "[1.5]", "[0,8]"), "\"shape\": expected integers"},
        {ONE("F32", "[1e300]", "[0,8]"), "\"shape\": expected integers"},
        {ONE("F32", "[\"2\"]", "[0,8]"), "\"shape\": expected integers"},
        {ONE("F32", "[2,1,1,1,1,1,1,1,1]", "[0,8]"), "\"shape\" has 9 numbers, expected at most 8"},
        {ONE("F32", "[4294967296,4294967296]", "[0,8]"), "product overflows"},
        {ONE("F32", "[4294967296,1073741824,1]", "[0,8]"), "product overflows"},
        {ONE("F32", "[3]", "[0,8]"), "data_offsets span 8 bytes, its shape takes 12"},
        {ONE("F32", "[1]", "[0,8]"), "data_offsets span 8 bytes, its shape takes 4"},
        {ONE("F32", "[2]", "[0]"), "expected two numbers"},
        {ONE("F32", "[2]", "[0,8,9]"), "\"data_offsets\" has 3 numbers, expected at most 2"},
        {ONE("F32", "[2]", "[8,0]"), "data_offsets 8 to 0, expected them in order"},
        {ONE("F32", "[2]", "[1,9]"), "at most 8, the size of the data"},
        {ONE("F32", "[2]", "[-8,0]"), "\"data_offsets\": expected integers"},
        {ONE("F32", "[0]", "[9007199254740991,9007199254740991]"),
         "at most 8, the size of the data"},
        {ONE("F32", "[1]", "[0,4]"), "the tensors take 4 bytes, the file has 8"},
        {ONE("F32", "[1]", "[4,8]"), "begins at byte 4 of the data, expected 0: there is a hole"},
        {TWO("[0,4]", "[0,4]"), "begins at byte 0 of the data, expected 4: it overlaps another"},
        {TWO("[0,4]", "[3,7]"),
         "tensor \"b\" begins at byte 3 of the data, expected 4: it overlaps"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"t\":{}}",
         "\"t\" twice"},
        {"{\"__metadata__\":[]}", "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"a\":1}}", "__metadata__: \"a\" is not a string"},
    };
    for (size_t i = 0; i < sizeof(headers) / sizeof(*headers); i++)
        CHECK_FAILS(opens, (void *)make_file("bad", headers[i][0], -1, "12345678", 8), 1,
                    headers[i][1]);
    safetensors_close(
        safetensors_open(make_file("good", TWO("[4,8]", "[0,4]"), -1, "12345678", 8)));
    safetensors_close(
        safetensors_open(make_file("good", ONE("F32", "[2]", "[0,8]") "   ", -1, "12345678", 8)));
}

static void test_hostile_lengths(void) {
    const char *header = ONE("F32", "[2]", "[0,8]");
    const int64_t size = (int64_t)strlen(header);
    CHECK_FAILS(opens, (void *)test_file("short", "1234567", 7), 1, "7 bytes, too short");
    CHECK_FAILS(opens, (void *)test_file("short", "", 0), 1, "0 bytes, too short");
    CHECK_FAILS(opens, (void *)make_file("bad", header, size + 9, "12345678", 8), 1,
                "or cut short");
    CHECK_FAILS(opens, (void *)make_file("bad", header, size + 8, "12345678", 8), 1,
                "found '1', expected");
    CHECK_FAILS(opens, (void *)make_file("bad", header, size - 1, "12345678", 8), 1,
                "found the end");
    CHECK_FAILS(opens, (void *)make_file("bad", header, INT64_MAX, "12345678", 8), 1,
                "or cut short");
    CHECK_FAILS(opens, (void *)make_file("bad", header, 100000001, "12345678", 8), 1,
                "or cut short");
    CHECK_FAILS(opens, (void *)test_file("bad", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10), 1,
                "header of 18446744073709551615 bytes in a file of 10");
    CHECK_FAILS(opens,
                (void *)test_file("pointer", "version https://git-lfs.github.com/spec/v1\n", 43), 1,
                "git lfs pull");
    CHECK_FAILS(opens, (void *)test_directory(), 1, "is a directory");
}

// Opens an arbitrary file and reads everything that it claims to contain.
static void reads_everything(void *path) {
    Safetensors *file = safetensors_open(path);
    for (int i = 0; i < file->tensor_count; i++) {
        const Tensor *tensor = &file->tensors[i];
        void *out = allocate(tensor->count, sizeof(double), "a test");
        if (tensor->type == TENSOR_I32 || tensor->type == TENSOR_I64)
            tensor_read_int32(file, tensor, out);
        else if (tensor->type != TENSOR_U8)
            tensor_read_double(file, tensor, out);
        free(out);
    }
    safetensors_close(file);
}

// Writes the bytes and checks that reading them works or fails with one line, whatever they are.
static void check_harmless(const char *path, const char *change, size_t at,
                           const unsigned char *bytes, size_t size) {
    char text[1024];
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) abort();
    const int code = test_child(reads_everything, (void *)path, text, sizeof(text));
    const char *end = strchr(text, '\n');
    const bool refused = code == 1 && strncmp(text, "error: ", 7) == 0 && end && end[1] == '\0';
    if (!refused && !(code == 0 && text[0] == '\0'))
        test_fail(__FILE__, __LINE__, "%s at byte %zu: code %d, stderr: %s", change, at, code,
                  text);
}

static void test_mutations(void) {
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"\\u00e9\"},"
        "\"a\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[8,16]},"
        "\"c\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[16,16]}}";
    static const unsigned char values[] = {0x00, 0xff, 0x80, '"', '9', '}'};
    enum { SIZE = 8 + sizeof(header) - 1 + 16 };
    unsigned char original[SIZE] = {sizeof(header) - 1}, bytes[SIZE];
    char *path = format_string("%s/mutated", test_directory());
    memcpy(original + 8, header, sizeof(header) - 1);
    for (size_t at = 0; at < SIZE - 8; at++) { // the last tensor's own data can be anything
        for (size_t i = 0; i < sizeof(values); i++) {
            memcpy(bytes, original, SIZE);
            bytes[at] = values[i];
            check_harmless(path, "replaced", at, bytes, SIZE);
        }
        memcpy(bytes, original, SIZE);
        bytes[at] ^= (unsigned char)(1 << at % 8);
        check_harmless(path, "flipped", at, bytes, SIZE);
        check_harmless(path, "cut", at, original, at);
        memmove(bytes + at, original + at + 1, SIZE - at - 1);
        check_harmless(path, "removed", at, bytes, SIZE - 1);
    }
    free(path);
}

// A model in two files with an index.
static void test_index(void) {
    const real values[] = {1, 2, 3, 4};
    const int64_t two = 2, four = 4;
    char *first = copy_string(test_file("model-1.safetensors", "", 0)),
         *second = copy_string(test_file("model-2.safetensors", "", 0));
    safetensors_write(
        first, (const TensorSource[]){{"a", 1, &two, values}, {"b", 1, &four, values}}, 2, NULL, 0);
    safetensors_write(second, &(const TensorSource){"c", 1, &two, values + 2}, 1, NULL, 0);
    const char *names = "{\"metadata\":{},\"weight_map\":{\"c\":\"model-2.safetensors\","
                        "\"a\":\"model-1.safetensors\",\"b\":\"model-1.safetensors\"}}";
    char *path = copy_string(test_file("model.safetensors.index.json", names, strlen(names)));
    Safetensors *file = safetensors_open(path);
    real read[2];
    CHECK(file->tensor_count == 3 && safetensors_find(file, "b")->count == 4);
    tensor_read_real(file, safetensors_find(file, "c"), read);
    CHECK(read[0] == 3 && read[1] == 4);
    safetensors_close(file);
    static const char *const cases[][2] = {
        {"{}", "expected \"weight_map\""},
        {"{\"weight_map\":{\"a\":7}}", "names something other than a file next to it"},
        {"{\"weight_map\":{\"a\":\"../model-1.safetensors\"}}", "names something other than"},
        {"{\"weight_map\":{\"c\":\"model-1.safetensors\"}}", "has no tensor c, which"},
        {"{\"weight_map\":{\"a\":\"model-1.safetensors\"}}", "names 1 tensors, its files have 2"},
        {"{\"weight_map\":{\"a\":\"model-3.safetensors\"}}", "model-3.safetensors: cannot open"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        test_file("model.safetensors.index.json", cases[i][0], strlen(cases[i][0]));
        CHECK_FAILS(opens, path, 1, cases[i][1]);
    }
    free(first);
    free(second);
    free(path);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"round trip", test_round_trip},
        {"no tensors", test_no_tensors},
        {"flipped bits", test_flipped_bits},
        {"damaged tensor", test_damaged_tensor},
        {"kept checksums", test_kept_checksums},
        {"null metadata", test_null_metadata},
        {"write fails", test_write_fails},
        {"F16", test_f16},
        {"index", test_index},
        {"BF16", test_bf16},
        {"F32 and F64", test_f32_f64},
        {"integers", test_integers},
        {"wrong type", test_wrong_type},
        {"hostile headers", test_hostile_headers},
        {"hostile lengths", test_hostile_lengths},
        {"mutations", test_mutations},
    };
    return test_main(argc, argv, "safetensors", cases, sizeof(cases) / sizeof(*cases));
}
