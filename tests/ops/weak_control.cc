// A negative control: the compiler must emit this inline function as a weak symbol.
inline int weak(int x) { return x + 1; }
int (*pointer_to_weak)(int) = weak;
