// A picture that gnuplot draws.
#ifndef TRAINER_PICTURE_H
#define TRAINER_PICTURE_H

#include "page.h"
#include <stdbool.h>

typedef struct {
    Page commands;          // gnuplot's
    char *path, *temporary; // of the picture; where it is drawn, so that none is ever half there
} Picture;

typedef enum { PICTURE_DRAWN, PICTURE_NO_GNUPLOT, PICTURE_FAILED } PictureResult;

// Why no picture can be drawn to this path, before there is one; NULL: nothing is known to be in
// the way.
const char *picture_obstacle(const char *path);

// Begins a picture of so many points: SVG where the path ends so, else PNG. More commands are
// written to commands.file. false: gnuplot cannot be told this path, which has a quote in it.
bool picture_begin(Picture *picture, const char *path, int width, int height);

// Draws it. What failed is warned of, but not that gnuplot is missing.
PictureResult picture_finish(Picture *picture);

#endif
