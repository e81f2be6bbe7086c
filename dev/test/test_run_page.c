#include "file.h"
#include "json.h"
#include "memory.h"
#include "run_page.h"
#include "test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Returns the page of a log as a new string; NULL: no page.
static char *page_of(const char *log, const PageModel *model, char *const *samples, int count) {
    test_file("log.jsonl", log, strlen(log));
    char *path = format_string("%s/run.html", test_directory()), *text = NULL;
    run_page_write(path, test_directory(), model, samples, count);
    FileMap page;
    if (file_try_map(path, &page)) {
        text = format_string("%.*s", (int)page.size, (const char *)page.data);
        file_unmap(&page);
        remove(path);
    }
    free(path);
    return text;
}

#define DATA "<script type=\"application/json\" id=\"data\">"

// Returns the page's data, up to where an HTML parser sees the end of the script element.
static Json *data_of(const char *page) {
    const char *begin = strstr(page, DATA), *end = begin ? strstr(begin, "</script") : NULL;
    CHECK(end);
    return end ? json_parse(begin + strlen(DATA), (size_t)(end - begin) - strlen(DATA), "the page")
               : NULL;
}

static const Json *member(const Json *value, const char *key) {
    const Json *found = value ? json_find(value, key) : NULL;
    CHECK(found);
    return found;
}

#define START "{\"event\":\"start\",\"model\":\"a|b\",\"command\":\"./train -x 2\"}\n"
#define STEP(n)                                                                                    \
    "{\"step\":" n ",\"epoch\":0.5,\"loss\":" n ",\"lr\":1,\"tokens_per_s\":" n                    \
    "00,\"seconds\":" n "}\n"
#define VALIDATION(n, more) "{\"step\":" n ",\"val_loss\":2.5,\"val_ms\":3" more "}\n"

static void test_facts(void) {
    char one[] = "a text", two[] = "no \xff utf-8", *const samples[] = {one, two};
    char *page = page_of(START STEP("1") STEP("2") VALIDATION("2", ",\"best\":true") STEP("3")
                             VALIDATION("3", "") "{\"step\":3,\"test_loss\":2.25}\n",
                         NULL, samples, 2);
    Json *data = data_of(page);
    const Json *run = &member(data, "runs")->items[0], *steps = member(run, "steps");
    CHECK(member(run, "lines")->count == 4); // the start, evaluations and the test
    CHECK_CLOSE(member(&member(run, "lines")->items[3], "test_loss")->number, 2.25, 0);
    CHECK(member(steps, "step")->count == 3);
    CHECK_CLOSE(member(steps, "loss")->items[1].number, 2, 0);
    CHECK(member(steps, "grad_norm")->items[0].kind == JSON_NULL);
    CHECK_TEXT(member(data, "samples")->items[1].string, "no \xef\xbf\xbd utf-8");
    json_free(data);
    free(page);
}

// With more steps than points, each point is a mean, and steps without a loss are ignored. A run
// that restarts continues from its first new step.
static void test_many_steps(void) {
    char *log = copy_string(START);
    for (int i = 1; i <= 40; i++) append_format(&log, "{\"step\":%d,\"loss\":9,\"lr\":1}\n", i);
    for (int i = 20; i <= 3000; i++)
        append_format(&log, "{\"step\":%d,\"loss\":%s,\"lr\":%d}\n", i,
                      i % 2 ? "5" : (i % 4 ? "null" : "6"), i);
    char *page = page_of(log, NULL, NULL, 0);
    Json *data = data_of(page);
    const Json *steps = member(&member(data, "runs")->items[0], "steps");
    CHECK(member(steps, "step")->count == 1000);
    CHECK_CLOSE(member(steps, "step")->items[999].number, 3000, 0);
    CHECK_CLOSE(member(steps, "lr")->items[999].number, 3000, 0);
    CHECK_CLOSE(member(steps, "loss")->items[11].number, 5.5, 0); // 34, 35, 36: null, 5, 6
    json_free(data);
    free(page);
    free(log);
}

// Foreign text stays text: it ends no element, and only the page's own script can run.
static void test_hostile(void) {
    static const char evil[] = "</script><img src=x onerror=alert(1)><!--<script>&\xe2\x80\xa8";
    char *log = format_string("{\"event\":\"start\",\"model\":\"%s\",\"command\":\"%s\",\"%s\":1}\n"
                              "{\"step\":1,\"loss\":1,\"lr\":1}\n",
                              evil, evil, evil);
    char *sample = copy_string(evil), *page = page_of(log, NULL, &sample, 1);
    Json *data = data_of(page);
    CHECK_TEXT(member(data, "samples")->items[0].string, evil);
    const Json *start = &member(&member(data, "runs")->items[0], "lines")->items[0];
    CHECK_TEXT(member(start, "command")->string, evil);
    CHECK(!strstr(page, "<img") && !strstr(page, "onerror=alert(1)>") && !strstr(page, "<!--<"));
    CHECK(strstr(page, "\\u003c/script\\u003e") && strstr(page, "\\u0026"));
    CHECK(strstr(page, "default-src 'none'"));
    char nonce[64] = "", *again = page_of(log, NULL, &sample, 1), *found;
    CHECK(sscanf(strstr(page, "'nonce-"), "'nonce-%32[0-9a-f]'", nonce) == 1);
    CHECK(strlen(nonce) == 32 && !strstr(again, nonce));
    int scripts = 0;
    for (found = page; (found = strstr(found, nonce)); found++) scripts++;
    CHECK(scripts == 4); // two in the policy, one each in style and script
    json_free(data);
    char *const texts[] = {log, sample, page, again};
    for (size_t i = 0; i < 4; i++) free(texts[i]);
}

// Files are base64, one per line; a model has a page even without a log.
static void test_files(void) {
    PageFile files[] = {{(char *)"a", {(char *)"M", 1, 1}},
                        {(char *)"b", {(char *)"Ma", 2, 2}},
                        {(char *)"c", {(char *)"\xff\xfe\x00", 3, 3}},
                        {(char *)"d", {0}}};
    const PageModel model = {files, 4, "int8", 2, NAN, NULL};
    char *page = page_of("", &model, NULL, 0);
    CHECK(page && strstr(page, ">a TQ==\nb TWE=\nc //4A\nd \n</script>"));
    Json *data = data_of(page);
    const Json *told = member(data, "model");
    CHECK_TEXT(member(told, "format")->string, "int8");
    CHECK(member(told, "rounded_loss")->kind == JSON_NULL);
    json_free(data);
    free(page);
}

// Lines with unexpected values are skipped or show nothing.
static void test_strange_logs(void) {
    static const char *const logs[] = {"",
                                       "\n\n",
                                       "no json\n",
                                       "[1]\n3\n\"lr\"\n",
                                       START,
                                       "{\"lr\":1}\n",
                                       "{\"lr\":null,\"step\":\"x\",\"loss\":[]}\n",
                                       "{\"event\":\"start\",\"command\":7}\n" STEP("1"),
                                       STEP("1") "{\"test_loss\":\"x\",\"test_ppl\":[1]}\n",
                                       STEP("1") "{\"val_loss\":{},\"best\":1,\"val_ppl\":1e300}\n",
                                       STEP("1") "cut o"};
    for (size_t i = 0; i < sizeof(logs) / sizeof(*logs); i++) {
        char *page = page_of(logs[i], NULL, NULL, 0);
        CHECK((page != NULL) == (strstr(logs[i], "\"lr\":1,") != NULL));
        if (page) json_free(data_of(page));
        free(page);
    }
}

int main(int argc, char **argv) {
    static const TestCase cases[] = {{"facts", test_facts},
                                     {"many steps", test_many_steps},
                                     {"hostile texts", test_hostile},
                                     {"files", test_files},
                                     {"strange logs", test_strange_logs}};
    return test_main(argc, argv, "run_page", cases, sizeof(cases) / sizeof(cases[0]));
}
