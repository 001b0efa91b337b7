// A program that does nothing: its build holds the precompiled headers that the tests share.
int main() { return 0; }
