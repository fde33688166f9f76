/* Calls functions of the library at a path, and compares their results: pairs of a kind and a name. */

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library)
        return fprintf(stderr, "%s\n", dlerror()), 2;
    for (int i = 2; i + 1 < count; i += 2) {
        const char *kind = words[i], *name = words[i + 1];
        void *symbol = dlsym(library, name);
        if (!symbol)
            return fprintf(stderr, "no %s\n", name), 1;
        errno = 0;
        int is_right = 0;
        if (!strcmp(kind, "number"))
            is_right = ((int (*)(void))symbol)() == ENOSYS && errno == ENOSYS;
        else if (!strcmp(kind, "minus"))
            is_right = ((int (*)(void))symbol)() == -1 && errno == ENOSYS;
        else if (!strcmp(kind, "null"))
            is_right = !((void *(*)(void))symbol)() && errno == ENOSYS;
        else if (!strcmp(kind, "nothing"))
            is_right = ((int (*)(void))symbol)() == 0;
        else if (!strcmp(kind, "data"))
            is_right = *(unsigned long *)symbol == 0;
        else if (!strcmp(kind, "fatal"))
            ((void (*)(void))symbol)();
        if (!is_right)
            return fprintf(stderr, "%s %s\n", kind, name), 1;
    }
    return 0;
}
