#include "memory.h"
#include "parameter.h"
#include "random.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add_three(ParameterTable *table) {
    parameter_add(table, "weight", 2, (int64_t[]){300, 101}, true, 0, 0.02);
    parameter_add(table, "gain", 1, (int64_t[]){17}, false, 1, 0);
    parameter_add(table, "position", 3, (int64_t[]){2, 3, 5}, true, 0.5, 0.1);
}

static void test_layout(void) {
    ParameterTable table = {0};
    add_three(&table);
    CHECK(table.count == 3 && table.parameters == 30300 + 17 + 30);
    CHECK(table.items[0].offset == 0 && table.items[1].offset == 30304 &&
          table.items[2].offset == 30336);
    CHECK(table.total == 30368);
    const Parameter *gain = parameter_find(&table, "gain");
    CHECK(gain == &table.items[1] && gain->rank == 1 && gain->shape[0] == 17 && gain->size == 17);
    CHECK(!gain->decay && gain->mean == 1 && gain->deviation == 0 && table.items[0].decay);
    CHECK(parameter_find(&table, "gai") == NULL && parameter_find(&table, "") == NULL);
    CHECK(table.items[2].shape[2] == 5 && table.items[2].size == 30);
    parameter_table_free(&table);
    CHECK(table.count == 0 && table.items == NULL);
}

static void test_many(void) {
    ParameterTable table = {0};
    for (int i = 0; i < 1000; i++) {
        char *name = format_string("layer.%d.weight", i);
        CHECK(parameter_add(&table, name, 1, (int64_t[]){i + 1}, true, 0, 1) % 16 == 0);
        free(name);
    }
    CHECK(table.count == 1000 && table.parameters == 500500);
    CHECK_TEXT(table.items[999].name, "layer.999.weight");
    for (int i = 1; i < 1000; i++)
        CHECK(table.items[i].offset >= table.items[i - 1].offset + table.items[i - 1].size);
    parameter_table_free(&table);
}

static real *initialised(const ParameterTable *table, uint64_t seed) {
    real *values = allocate(table->total, sizeof(real), "a test");
    for (size_t i = 0; i < table->total; i++) values[i] = 99; // earlier contents must not matter
    parameter_initialise(table, seed, values);
    return values;
}

static void test_initialise(void) {
    ParameterTable table = {0};
    add_three(&table);
    real *values = initialised(&table, 42);
    const Parameter *weight = &table.items[0], *gain = &table.items[1], *position = &table.items[2];
    double sum = 0, squares = 0;
    Random sequence = random_stream(42, RANDOM_INIT, 0, 0); // independent of the split over threads
    for (size_t i = 0; i < weight->size; i++) {
        CHECK(values[i] == (real)(weight->mean + weight->deviation * random_normal(&sequence)));
        sum += (double)values[i];
        squares += (double)values[i] * (double)values[i];
    }
    CHECK_CLOSE(sum / (double)weight->size, 0, 5e-4);
    CHECK_CLOSE(sqrt(squares / (double)weight->size), 0.02, 4e-4);
    for (size_t i = 0; i < gain->size; i++) CHECK(values[gain->offset + i] == 1);
    Random random = random_stream(42, RANDOM_INIT, 2, 0);
    for (size_t i = 0; i < position->size; i++)
        CHECK_CLOSE(values[position->offset + i], 0.5 + 0.1 * random_normal(&random), 1e-7);
    for (int k = 0; k < table.count; k++) { // padding
        const size_t end = k + 1 < table.count ? table.items[k + 1].offset : table.total;
        for (size_t i = table.items[k].offset + table.items[k].size; i < end; i++)
            CHECK(values[i] == 0);
    }
    real *again = initialised(&table, 42), *other = initialised(&table, 43);
    CHECK(memcmp(values, again, table.total * sizeof(real)) == 0);
    CHECK(memcmp(values, other, table.total * sizeof(real)) != 0);
    free(values);
    free(again);
    free(other);
    parameter_table_free(&table);
}

typedef struct {
    const char *name;
    int rank;
    int64_t shape[PARAMETER_RANK];
} Bad;

static void adds(void *argument) {
    const Bad *bad = argument;
    ParameterTable table = {0};
    parameter_add(&table, "there", 1, (int64_t[]){1}, true, 0, 1);
    parameter_add(&table, bad->name, bad->rank, bad->shape, true, 0, 1);
}

static void adds_too_many(void *argument) {
    (void)argument;
    ParameterTable table = {0};
    for (int i = 0; i <= PARAMETER_MAX; i++) {
        char name[32];
        snprintf(name, sizeof(name), "p%d", i);
        parameter_add(&table, name, 1, (int64_t[]){1}, true, 0, 1);
    }
}

static void test_refuses(void) {
    char name[PARAMETER_NAME + 1];
    memset(name, 'n', PARAMETER_NAME);
    name[PARAMETER_NAME] = '\0';
    CHECK_FAILS(adds, (&(Bad){name, 1, {1}}), 1, "longer than 95 bytes");
    CHECK_FAILS(adds, (&(Bad){"there", 1, {1}}), 1, "added twice");
    CHECK_FAILS(adds, (&(Bad){"x", 0, {0}}), 1, "rank 0");
    CHECK_FAILS(adds, (&(Bad){"x", PARAMETER_RANK + 1, {1, 1, 1, 1}}), 1, "expected 1 to 4");
    CHECK_FAILS(adds, (&(Bad){"x", 2, {3, 0}}), 1, "dimension 1 is 0");
    CHECK_FAILS(adds, (&(Bad){"x", 1, {-5}}), 1, "dimension 0 is -5");
    CHECK_FAILS(adds, (&(Bad){"x", 3, {1ll << 32, 1ll << 32, 1ll << 32}}), 1, "too many elements");
    CHECK_FAILS(adds, (&(Bad){"x", 1, {(1ll << 60) - 1}}), 1, "too many elements");
    CHECK_FAILS(adds_too_many, NULL, 1, "more than 4096 parameters");
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"layout", test_layout},
        {"many", test_many},
        {"initialise", test_initialise},
        {"refuses", test_refuses},
    };
    return test_main(argc, argv, "parameter", cases, sizeof(cases) / sizeof(*cases));
}
