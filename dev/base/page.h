// A text that grows in memory as one writes to it with fprintf.
#ifndef BASE_PAGE_H
#define BASE_PAGE_H

#include <stddef.h>
#include <stdio.h>

typedef struct {
    FILE *file;
    char *text; // valid once the page is closed; the caller's to free
    size_t size;
} Page;

// Both end the program where memory does not suffice.
void page_open(Page *page);
void page_close(Page *page);

#endif
