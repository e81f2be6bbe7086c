// --attention and --windows: the kind and window of each layer, and one-line error messages.
#include "attention_options.h"
#include "memory.h"
#include "test.h"
#include "text.h"
#include <stdlib.h>
#include <string.h>

static Options *make_options(const char *attention, const char *windows) {
    static const Option rows[] = {ATTENTION_OPTION("softmax", false),
                                  WINDOWS_OPTION("global", true), COSINE_OPTION(false),
                                  PAIRWISE_OPTIONS, ADDITIVE_OPTIONS(true)};
    Options *options = options_create("test", "");
    options_add(options, rows, sizeof(rows) / sizeof(rows[0]));
    options_set(options, OPT_ATTENTION, attention, "test");
    options_set(options, OPT_WINDOWS, windows, "test");
    return options;
}

// expected: "additive:4 additive softmax", one word per layer; global windows are omitted.
static void check_positions(const char *attention, const char *windows, size_t layers,
                            size_t positions, bool causal, const char *expected) {
    Options *options = make_options(attention, windows);
    AttentionPlan *plans = attention_plans(options, layers, positions, causal);
    char *text = copy_string("");
    for (size_t l = 0; l < layers; l++) {
        append_format(&text, "%s%s", l ? " " : "", attention_types[plans[l].kind].name);
        if (plans[l].window > 0) append_format(&text, ":%zu", plans[l].window);
        CHECK(plans[l].causal == causal);
        CHECK(!attention_projects(&plans[l]) && plans[l].learned[0] == NO_PARAMETER);
    }
    CHECK_TEXT(text, expected);
    free(text);
    free(plans);
    options_free(options);
}

static void check(const char *attention, const char *windows, size_t layers, bool causal,
                  const char *expected) {
    check_positions(attention, windows, layers, 100, causal, expected);
}

static void test_layers(void) {
    check("softmax", "global", 3, true, "softmax softmax softmax");
    check("additive", "auto", 4, true, "additive:4 additive:8 additive:16 additive");
    check("additive", "4, 8,global", 3, true, "additive:4 additive:8 additive");
    check("additive", "[4, 8, 100]", 3, true, "additive:4 additive:8 additive"); // all positions
    check("additive,additive,softmax", "auto", 3, true, "additive:4 additive:8 softmax");
    check("additive*3+softmax", "4,8,2,global", 4, true,
          "additive:4 additive:8 additive:2 softmax");
    check("additive+softmax", "global", 4, true, "additive softmax additive softmax");
    check("additive:7*2+softmax1:global", "auto", 6, true,
          "additive:7 additive:7 softmax1 additive:7 additive:7 softmax1");
    check("additive:global", "auto", 3, true, "additive additive additive");
    check("softmax,additive", "global", 2, false, "softmax additive");
}

// A window that spans all of a checkpoint's 100 positions spans all 200 after an extension.
static void test_extend(void) {
    static const struct {
        const char *attention, *windows, *sizes; // sizes "": no layer has a window
        const char *expected;
    } all[] = {
        {"additive", "auto", "[4, 8, 100]", "additive:4 additive:8 additive"},
        {"additive", "4,100,global", "[4, 100, 100]", "additive:4 additive additive"},
        {"additive*2+softmax:100", "4,8,global", "[4, 8, 100]", "additive:4 additive:8 softmax"},
        {"additive:9,softmax:300,softmax:global", "auto", "[9, 100, 100]",
         "additive:9 softmax softmax"},
        {"softmax", "100,100,100", "", "softmax softmax softmax"},
        {"softmax:100", "global", "", "softmax softmax softmax"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        Safetensors file = {0};
        metadata_set(&file.metadata, &file.metadata_count, "n_positions", copy_string("100"));
        metadata_set(&file.metadata, &file.metadata_count, "attention",
                     copy_string(all[i].attention));
        metadata_set(&file.metadata, &file.metadata_count, "windows", copy_string(all[i].windows));
        if (*all[i].sizes)
            metadata_set(&file.metadata, &file.metadata_count, "window_sizes",
                         copy_string(all[i].sizes));
        attention_extend(&file, 200);
        check_positions(safetensors_metadata(&file, "attention"),
                        safetensors_metadata(&file, "windows"), 3, 200, true, all[i].expected);
        metadata_free(file.metadata, file.metadata_count);
    }
}

// The numbers that decoding keeps of 1,000 tokens, with 8 channels in 2 heads.
static void test_state(void) {
    static const struct {
        const char *attention;
        double numbers;
    } all[] = {{"softmax", 2 * 1000 * 8},    {"softmax1:16", 2 * 16 * 8},
               {"pairwise", 2 * 1000 * 8},   {"cosine", 2 * 4 * 4},
               {"cosine:16", 2 * 16 * 8},    {"additive:16", 2 * (16 + 3) * (8 + 2)},
               {"additive", 2 * 3 * (8 + 2)}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        Options *options = make_options(all[i].attention, "global");
        AttentionPlan *plan = attention_plans(options, 1, 100, true);
        CHECK(attention_types[plan->kind].state(plan, 8, 2, 1000) == all[i].numbers);
        plan->groups = 1; // both query heads share one head of keys
        if (attention_types[plan->kind].compares && attention_types[plan->kind].scores)
            CHECK(attention_types[plan->kind].state(plan, 8, 2, 1000) == all[i].numbers / 2);
        free(plan);
        options_free(options);
    }
}

// --help lists the kinds that exist.
static void test_names(void) {
    char *names = copy_string("");
    for (int kind = 0; kind < ATTENTION_KINDS; kind++)
        if (attention_types[kind].causal)
            append_format(&names, "%s%s", *names ? "|" : "", attention_types[kind].name);
    CHECK_TEXT(names, ATTENTION_NAMES);
    free(names);
}

// If a checkpoint omits an implied option, the option has its default.
static void test_implied(void) {
    Options *options = make_options("additive", "global");
    Metadata *rows = NULL;
    int count = 0;
    options_to_metadata(options, OPTION_MODEL, &rows, &count);
    CHECK(count == 2); // attention and the cosine's power
    CHECK_TEXT(rows[0].key, "attention");
    metadata_free(rows, count);
    options_set(options, OPT_WINDOWS, "4,8", "test");
    options_set(options, OPT_SINK, "1", "test");
    rows = NULL;
    count = 0;
    options_to_metadata(options, OPTION_MODEL, &rows, &count);
    CHECK(count == 4);
    CHECK_TEXT(rows[1].key, "windows");
    const Safetensors file = {.metadata = rows, .metadata_count = count};
    Options *read = make_options("softmax", "global");
    options_from_metadata(read, OPTION_MODEL, &file, "advice");
    CHECK_TEXT(options_text(read, OPT_WINDOWS), "4,8");
    CHECK(options_number(read, OPT_SINK) == 1 && options_number(read, OPT_RESCALE) == 10);
    const Safetensors silent = {.metadata_count = 0};
    options_from_metadata(read, OPTION_MODEL, &silent, "advice");
    CHECK_TEXT(options_text(read, OPT_WINDOWS), "global");
    CHECK_TEXT(options_text(read, OPT_ATTENTION), "additive"); // not implied
    metadata_free(rows, count);
    options_free(read);
    options_free(options);
}

// Parses "ATTENTION WINDOWS" for 4 layers of 100 positions, causal without the prefix "both ".
static void parse(void *attention_and_windows) {
    char text[100];
    snprintf(text, sizeof(text), "%s", (const char *)attention_and_windows);
    const bool both = strncmp(text, "both ", 5) == 0;
    char *attention = text + (both ? 5 : 0), *space = strchr(attention, ' ');
    if (space) *space = '\0';
    free(attention_plans(make_options(attention, space ? space + 1 : "global"), 4, 100, !both));
}

static void test_refused(void) {
    CHECK_FAILS(parse, "sofmax", 2,
                "\"sofmax\" is no causal attention; expected softmax|softmax1|");
    CHECK_FAILS(parse, "", 2, "is no causal attention");
    CHECK_FAILS(parse, "softmax,,softmax,softmax", 2, "\"\" is no causal attention");
    CHECK_FAILS(parse, "both sofmax", 2, "is no bidirectional attention");
    CHECK_FAILS(parse, "both additive:4", 2, "only causal attention has windows");
    CHECK_FAILS(parse, "softmax,additive", 2, "2 entries for 4 layers");
    CHECK_FAILS(parse, "softmax,softmax,softmax,softmax,softmax", 2, "5 entries for 4 layers");
    CHECK_FAILS(parse, "additive*2+softmax", 2, "a pattern of 3 layers does not divide 4");
    CHECK_FAILS(parse, "additive*99999999999999999999999", 2, "a whole number from 1 to 256");
    CHECK_FAILS(parse, "additive*4+softmax", 2, "a pattern of 5 layers does not divide 4");
    CHECK_FAILS(parse, "additive*0", 2, "a whole number from 1 to 256");
    CHECK_FAILS(parse, "additive*x", 2, "a whole number from 1 to 256");
    CHECK_FAILS(parse, "additive*2,softmax,softmax", 2, "either a list (,) or a pattern");
    CHECK_FAILS(parse, "additive:0", 2, "the window after ':'");
    CHECK_FAILS(parse, "additive:", 2, "the window after ':'");
    CHECK_FAILS(parse, "additive:4x", 2, "the window after ':'");
    CHECK_FAILS(parse, "additive 0,1,2,3", 1, "--windows 0,1,2,3");
    CHECK_FAILS(parse, "additive 1,2,3", 1, "3 windows for 4 layers");
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {{"layers", test_layers},   {"extend", test_extend},
                                     {"state", test_state},     {"names", test_names},
                                     {"implied", test_implied}, {"refused", test_refused}};
    return test_main(argc, argv, "attention options", cases, sizeof(cases) / sizeof(cases[0]));
}
