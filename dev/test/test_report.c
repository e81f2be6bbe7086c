#include "file.h"
#include "memory.h"
#include "report.h"
#include "test.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The report of a log, fresh; NULL: there is none.
static char *report_of(const char *log, char *const *samples, int count) {
    test_file("log.jsonl", log, strlen(log));
    report_write(test_directory(), samples, count);
    char *path = format_string("%s/report.md", test_directory()), *text = NULL;
    FILE *file = fopen(path, "r");
    if (file) {
        text = allocate(1 << 16, 1, "a report");
        text[fread(text, 1, (1 << 16) - 1, file)] = '\0';
        fclose(file);
    }
    unlink(path);
    free(path);
    return text;
}

#define START "{\"event\":\"start\",\"model\":\"a|b, 7 parameters\",\"command\":\"./train -x 2\"}\n"
#define STEP(n)                                                                                    \
    "{\"step\":" n ",\"epoch\":0.5,\"loss\":" n ",\"lr\":1,\"tokens_per_s\":" n                    \
    "00,\"seconds\":" n "}\n"

static void test_facts(void) {
    char one[] = "a text\nof two lines", two[] = "no \xff utf-8", *const samples[] = {one, two};
    char *text = report_of(
        START STEP("1") STEP("2") STEP(
            "3") "{\"step\":2,\"val_loss\":2.5,\"val_ppl\":12.18,\"val_tokens\":50,\"val_ms\":3,"
                 "\"best\":true}\n"
                 "{\"step\":3,\"val_loss\":2.75,\"val_ppl\":15.6,\"val_tokens\":50,\"val_ms\":3}\n"
                 "{\"step\":3,\"test_loss\":2.25,\"test_ppl\":123456.7,\"test_tokens\":60}\n",
        samples, 2);
    CHECK(text && strstr(text, "\n    ./train -x 2\n"));
    CHECK(strstr(text, "| model | a\\|b, 7 parameters |\n"));
    CHECK(strstr(text, "| trained | 3 steps, 0.5 epochs, 3.0s |\n"));
    CHECK(strstr(text, "| speed | 200 tokens/s,"));
    CHECK(strstr(text, "| | validation, best: step 2 | test |\n"));
    CHECK(strstr(text, "| loss, nats per token | 2.5000 | 2.2500 |\n| perplexity per token | "
                       "12.1800 | 123457 |\n"));
    CHECK(strstr(text, "| tokens | 50 | 60 |\n") && !strstr(text, "ms |"));
    CHECK(strstr(text, "\n    a text\n    of two lines\n\n---\n\n    no \xef\xbf\xbd utf-8\n"));
    CHECK(!strstr(text, "curve.png")); // of three steps
    free(text);
}

// Lines that say something else than they should are passed over, or say nothing.
static void test_strange_logs(void) {
    static const char *const logs[] = {"",
                                       "\n\n",
                                       "no json\n",
                                       "[1]\n3\n\"lr\"\n",
                                       START,
                                       "{\"event\":\"start\",\"command\":7}\n" STEP("1"),
                                       STEP("1") "{\"test_loss\":\"x\",\"test_ppl\":[1]}\n",
                                       "{\"lr\":1}\n",
                                       "{\"lr\":null,\"step\":\"x\",\"loss\":[]}\n",
                                       STEP("1") "{\"val_loss\":{},\"best\":1,\"val_ppl\":1e300}\n",
                                       STEP("1") "cut o"};
    for (size_t i = 0; i < sizeof(logs) / sizeof(*logs); i++) {
        char *text = report_of(logs[i], NULL, 0);
        CHECK((text != NULL) == (strstr(logs[i], "\"lr\":") != NULL));
        free(text);
    }
}

// Steps without a loss are no points of the curve, which a stand-in for gnuplot shows.
static void test_curve(void) {
    char *script = format_string("#!/bin/sh\ncat >%s/commands\n: >%s/curve.png.tmp\n",
                                 test_directory(), test_directory());
    char *path = format_string("%s:%s", test_directory(), getenv("PATH")),
         *log = copy_string(START);
    chmod(test_file("gnuplot", script, strlen(script)), 0700);
    setenv("PATH", path, 1);
    for (int i = 1; i <= REPORT_CURVE_STEPS + 2; i++)
        append_format(&log, "{\"step\":%d,\"loss\":%s,\"lr\":1,\"tokens_per_s\":9}\n", i,
                      i % 60 ? "5" : "null");
    append_format(&log, "{\"step\":9,\"val_loss\":4}\n{\"step\":19,\"val_loss\":null}\n");
    char *report = report_of(log, NULL, 0);
    CHECK(report && strstr(report, "(curve.png)") && strstr(report, "| trained | 102 steps"));
    free(path);
    path = format_string("%s/commands", test_directory());
    FileMap commands = file_map(path);
    char *text = format_string("%.*s", (int)commands.size, (const char *)commands.data);
    CHECK(strstr(text, "\n59 5\n61 5\n") && strstr(text, "\n102 5\nEND\n"));
    CHECK(strstr(text, "$val << END\n9 4\nEND\n"));
    file_unmap(&commands);
    char *const strings[] = {script, path, log, report, text};
    for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++) free(strings[i]);
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {
        {"facts", test_facts}, {"strange logs", test_strange_logs}, {"curve", test_curve}};
    return test_main(argc, argv, "report", cases, sizeof(cases) / sizeof(cases[0]));
}
