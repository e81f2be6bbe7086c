#include "page.h"

#include "error.h"

void page_open(Page *page) {
    page->file = open_memstream(&page->text, &page->size);
    if (!page->file) fail("no memory for a text");
}

void page_close(Page *page) {
    if (fclose(page->file) != 0) fail("no memory for a text");
}
