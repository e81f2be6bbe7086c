#include "picture.h"

#include "error.h"
#include "memory.h"
#include "process.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *temporary_path(const char *path) {
    return format_string("%s.tmp", path);
}

const char *picture_obstacle(const char *path) {
    if (strchr(path, '\'')) return "gnuplot takes no path with a quote";
    char *temporary = temporary_path(path);
    FILE *file = fopen(temporary, "w");
    const char *obstacle = file ? NULL : strerror(errno);
    if (file) {
        fclose(file);
        unlink(temporary);
    }
    free(temporary);
    if (obstacle) return obstacle;
    ProcessResult result =
        process_run((const char *const[]){"gnuplot", "--version", NULL}, (Text){0});
    const bool missing = result.start_error == ENOENT;
    process_result_free(&result);
    return missing ? "gnuplot is missing (Debian: gnuplot-nox)" : NULL;
}

// gnuplot reads the quote in a path as it is doubled.
bool picture_begin(Picture *picture, const char *path, int width, int height) {
    if (strchr(path, '\'')) return false;
    const char *dot = strrchr(path, '.');
    *picture = (Picture){.path = copy_string(path), .temporary = temporary_path(path)};
    page_open(&picture->commands);
    fprintf(picture->commands.file,
            "set terminal %s noenhanced size %d,%d font 'sans,12'\nset output '%s'\nset border 3\n"
            "set tics nomirror\n",
            dot && strcmp(dot, ".svg") == 0 ? "svg background 'white'" : "pngcairo", width, height,
            picture->temporary);
    return true;
}

PictureResult picture_finish(Picture *picture) {
    page_close(&picture->commands);
    const Text commands = {picture->commands.text, picture->commands.size};
    ProcessResult result = process_run((const char *const[]){"gnuplot", "-", NULL}, commands);
    const bool drawn = result.start_error == 0 && result.exit_code == 0 &&
                       rename(picture->temporary, picture->path) == 0;
    const bool missing = result.start_error == ENOENT;
    if (!drawn && !missing) warn("%s: gnuplot could not draw it", picture->path);
    if (!drawn) unlink(picture->temporary);
    process_result_free(&result);
    free(picture->commands.text);
    free(picture->temporary);
    free(picture->path);
    return drawn ? PICTURE_DRAWN : missing ? PICTURE_NO_GNUPLOT : PICTURE_FAILED;
}
