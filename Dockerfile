# One image for every part: the command line says which (see docker-compose.yml).
FROM python:3.12-slim
WORKDIR /opt/afterturn
COPY pyproject.toml README.md CHANGELOG.md ./
COPY src ./src
COPY tasks ./tasks
COPY workers ./workers
COPY schema ./schema
RUN pip install --no-cache-dir . && useradd --system --create-home afterturn
USER afterturn
WORKDIR /home/afterturn
ENTRYPOINT ["afterturn"]
CMD ["--help"]
