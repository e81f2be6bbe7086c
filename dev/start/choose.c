// main() of a program that contains several copies of itself, compiled for different x86-64
// instruction set levels (make ARCH=portable). It runs the first copy that the processor supports,
// or the last, which runs on any processor. LEVELS is LEVEL(NAME) for each copy except the last.
// The linker replaces main() of the last copy by this one (--wrap).
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
