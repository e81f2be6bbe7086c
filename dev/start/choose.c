// The main of a program that holds several copies of itself, each compiled for another level of
// x86-64's instructions (make ARCH=portable): it runs the first whose level the processor has, or
// the last, which runs on any. LEVELS is LEVEL(NAME) for each but the last. The linker puts this
// main in the place of the last one's.
#define LEVEL(name)                                                                                \
    const char *processor_lacks_##name(void);                                                      \
    int main_##name(int argc, char **argv);
LEVELS
#undef LEVEL

int __real_main(int argc, char **argv);
int __wrap_main(int argc, char **argv);

int __wrap_main(int argc, char **argv) {
#define LEVEL(name)                                                                                \
    if (!processor_lacks_##name()) return main_##name(argc, argv);
    LEVELS
#undef LEVEL
    return __real_main(argc, argv);
}
