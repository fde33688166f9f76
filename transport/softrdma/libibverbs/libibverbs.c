/* libibverbs.so.1: the symbols and versions of Debian's library, forwarded to libsoftrdma.so.
 *
 * rustc writes its own version script for a library, and not every linker accepts a second one. So the
 * versions are in this library, which the C compiler links with a version script of its own. Each function
 * jumps to the function of the same name in libsoftrdma.so, which lies in the same folder. Frequent calls
 * (posting, polling) go through function tables in objects, and do not pass here.
 *
 * build.rs makes `symbols.h` from the file `symbols`. */

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Changes no register except one that a call may clobber. */
#if defined(__x86_64__)
#define JUMP(name) "endbr64\n jmp *to_" #name "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(name) "hint #34\n adrp x16, to_" #name "\n ldr x16, [x16, :lo12:to_" #name "]\n br x16\n"
#else
#error "libibverbs.so.1 can't forward calls on this processor; preload libsoftrdma.so instead"
#endif

#define forwarded(name)                                                                                      \
    __attribute__((visibility("hidden"))) void *to_##name;                                                   \
    __asm__(".text\n .balign 16\n .globl " #name "\n .type " #name ", %function\n" #name ":\n" JUMP(name)    \
            ".size " #name ", . - " #name "\n");
#define number(name)                                                                                         \
    int name(void) { return errno = ENOSYS; }
#define minus(name)                                                                                          \
    int name(void) { return errno = ENOSYS, -1; }
#define null(name)                                                                                           \
    void *name(void) { return errno = ENOSYS, (void *)0; }
#define nothing(name)                                                                                        \
    int name(void) { return 0; }
#define fatal(name)                                                                                          \
    void name(void) {                                                                                        \
        fputs("softrdma: " #name " was called, which software devices don't have\n", stderr);                \
        abort();                                                                                             \
    }
#define data(name) unsigned long name;
#include "symbols.h"

#undef forwarded
#undef number
#undef minus
#undef null
#undef nothing
#undef fatal
#undef data
#define forwarded(name) {#name, &to_##name},
#define number(name)
#define minus(name)
#define null(name)
#define nothing(name)
#define fatal(name)
#define data(name)

static const struct {
    const char *name;
    void **place;
} calls[] = {
#include "symbols.h"
};

/* Looks up all functions. The loader initializes a library before its dependents, so every function has an
 * address before any caller runs. A missing function means a libsoftrdma.so of another version; the program
 * then ends as it does when the loader misses a symbol. */
__attribute__((constructor)) static void find(void) {
    void *device = dlopen("libsoftrdma.so", RTLD_LAZY | RTLD_NOLOAD);
    const char *wanted = "libsoftrdma.so";
    for (size_t i = 0; device && i < sizeof calls / sizeof *calls; i++) {
        wanted = calls[i].name;
        if (!(*calls[i].place = dlsym(device, wanted)))
            device = 0;
    }
    if (!device) {
        fprintf(stderr,
                "softrdma: libibverbs.so.1 and libsoftrdma.so are of different versions: %s is missing; "
                "install both with `softrdma lib`\n", wanted);
        _exit(127);
    }
}
