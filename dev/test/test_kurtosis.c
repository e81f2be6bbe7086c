// The kurtosis program, from its command line to what it prints.
int kurtosis_main(int argc, char **argv);
#define main kurtosis_main
#include "dev/tools/kurtosis.c"
#undef main

#include "bytes.h"
#include "test.h"
#include <math.h>

// Runs "kurtosis" with the arguments, in which %s is the test's directory; its output goes to the
// file "out" there.
static void run(void *arguments) {
    char *copy = copy_string(arguments), *argv[16] = {(char *)"kurtosis"}, *path;
    int argc = 1;
    for (char *rest, *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *mark = strstr(word, "%s");
        if (mark) *mark = '\0';
        argv[argc++] =
            mark ? format_string("%s%s%s", word, test_directory(), mark + 2) : copy_string(word);
    }
    path = format_string("%s/out", test_directory());
    if (!freopen(path, "w", stdout)) abort();
    const int code = kurtosis_main(argc, argv);
    for (int i = 1; i < argc; i++) free(argv[i]);
    free(copy);
    free(path);
    if (code != 0) fail("kurtosis returned %d", code);
}

// What it prints, NUL-terminated fresh memory, with the test's directory taken out.
static char *output_of(const char *arguments) {
    char errors[4096], *path = format_string("%s/out", test_directory());
    const int code = test_child(run, (void *)arguments, errors, sizeof(errors));
    if (code != 0 || *errors)
        test_fail(__FILE__, __LINE__, "kurtosis %s: code %d, %s", arguments, code, errors);
    FileMap out = file_map(path);
    char *text = allocate(out.size + 1, 1, "a test"), *at;
    if (out.size > 0) memcpy(text, out.data, out.size);
    const size_t length = strlen(test_directory());
    while ((at = strstr(text, test_directory())))
        memmove(at, at + length + 1, strlen(at + length + 1) + 1);
    file_unmap(&out);
    free(path);
    return text;
}

static void make_file(const char *name, const char *header, const void *data, size_t size) {
    const uint64_t length = strlen(header);
    Bytes bytes = {0};
    bytes_append(&bytes, &length, sizeof(length));
    bytes_append(&bytes, header, (size_t)length);
    bytes_append(&bytes, data, size);
    test_file(name, bytes.data, bytes.size);
    bytes_free(&bytes);
}

// -1 and 3 in every floating-point type; integers, and what has no kurtosis.
static void make_types(const char *name) {
    static const struct {
        double f64[2];
        int64_t i64[2];
        float f32[2], constant[2], not_a_number[2];
        int32_t i32[2];
        uint16_t f16[2], bf16[2];
        uint8_t u8[2];
    } data = {{-1, 3},         {1, 2},           {-1, 3},          {0.5f, 0.5f}, {1, NAN},
              {1000000000, 2}, {0xbc00, 0x4200}, {0xbf80, 0x4040}, {7, 8}};
    make_file(name,
              "{\"f64\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]},"
              "\"i64\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[16,32]},"
              "\"f32\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[32,40]},"
              "\"constant\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[40,48]},"
              "\"bad\\u001b[0m\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[48,56]},"
              "\"i32\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[56,64]},"
              "\"f16\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[64,68]},"
              "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[68,72]},"
              "\"u8\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[72,74]},"
              "\"empty\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[74,74]}}",
              &data, 74);
}

static void test_table(void) {
    make_types("a");
    char *text = output_of("%s/a");
    CHECK_TEXT(text, "a\n"
                     "tensor             n        mean        std  max|x|/std   kurtosis\n"
                     "f64                2           1          2         1.5         -2\n"
                     "f32                2           1          2         1.5         -2\n"
                     "constant           2         0.5          0           -          -\n"
                     "bad?[0m            2         nan        nan           -          -\n"
                     "f16                2           1          2         1.5         -2\n"
                     "bf16               2           1          2         1.5         -2\n"
                     "empty              0           -          -           -          -\n"
                     "integers left out: 3 tensors\n");
    free(text);
}

static void test_json(void) {
    make_types("a");
    make_file("b", "{}", "", 0);
    char *text = output_of("--json %s/b %s/a %s/a");
    Json *json = json_parse(text, strlen(text) - 1, "output");
    CHECK(json->kind == JSON_ARRAY && json->count == 14);
    for (size_t i = 0; i < json->count; i++) {
        const Json *tensor = &json->items[i], *kurtosis = json_find(tensor, "kurtosis");
        const char *name = json_string(tensor, "tensor", "output");
        CHECK_TEXT(json_string(tensor, "file", "output"), "a");
        const bool defined = strchr(name, '6') || strchr(name, '2');
        CHECK(kurtosis->kind == (defined ? JSON_NUMBER : JSON_NULL));
        CHECK(json_find(tensor, "n")->number == (strcmp(name, "empty") == 0 ? 0 : 2));
        if (!defined) continue;
        CHECK(kurtosis->number == -2 && json_find(tensor, "mean")->number == 1);
        CHECK(json_find(tensor, "max_abs_over_std")->number == 1.5);
    }
    json_free(json);
    free(text);
    text = output_of("--json %s/b");
    CHECK_TEXT(text, "[]\n");
    free(text);
}

// A tensor longer than what is read at once, at an odd address.
static void test_long(void) {
    enum { COUNT = 10000 };
    unsigned char *data = allocate(1 + COUNT * sizeof(float), 1, "a test");
    for (int i = 0; i < COUNT; i++) {
        const float value = i == COUNT - 1 ? -4.0f : 0.0f;
        memcpy(data + 1 + (size_t)i * sizeof(float), &value, sizeof(value));
    }
    make_file("a",
              "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
              "\"t\":{\"dtype\":\"F32\",\"shape\":[100,100],\"data_offsets\":[1,40001]}}",
              data, 1 + COUNT * sizeof(float));
    char *text = output_of("--json %s/a");
    Json *json = json_parse(text, strlen(text) - 1, "output");
    const Json *tensor = &json->items[0];
    CHECK(json->count == 1 && json_find(tensor, "n")->number == COUNT);
    CHECK_CLOSE(json_find(tensor, "mean")->number, -4.0 / COUNT, 1e-18);
    CHECK_CLOSE(json_find(tensor, "kurtosis")->number, 1 / (1e-4 * (1 - 1e-4)) - 6, 1e-7);
    json_free(json);
    free(text);
    free(data);
}

#define CHECK_RUN_FAILS(arguments, code, message)                                                  \
    CHECK_FAILS(run, (void *)(arguments), code, message)

static void test_bad_input(void) {
    make_types("a");
    test_file("short", "abc", 3);
    make_file("hole", "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "1234",
              4);
    CHECK_RUN_FAILS("", 2, "found no file");
    CHECK_RUN_FAILS("--jsn %s/a", 2, "--jsn");
    CHECK_RUN_FAILS("%s/none", 1, "none: cannot open");
    CHECK_RUN_FAILS("%s", 1, "is a directory");
    CHECK_RUN_FAILS("%s/a %s/short", 1, "short: 3 bytes");
    CHECK_RUN_FAILS("%s/hole", 1, "hole: tensor \"t\"");
}

static void fill_disk(void *path) {
    char *arguments[] = {(char *)"kurtosis", path, NULL};
    if (!freopen("/dev/full", "w", stdout)) abort();
    kurtosis_main(2, arguments);
}

static void test_full_disk(void) {
    make_types("a");
    char *path = format_string("%s/a", test_directory());
    CHECK_FAILS(fill_disk, path, 1, "standard output: cannot write");
    free(path);
}

int main(int argc, char **argv) {
    const TestCase cases[] = {
        {"table", test_table},         {"json", test_json},           {"long tensor", test_long},
        {"bad input", test_bad_input}, {"full disk", test_full_disk},
    };
    return test_main(argc, argv, "kurtosis", cases, sizeof(cases) / sizeof(*cases));
}
